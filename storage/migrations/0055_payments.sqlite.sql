CREATE INDEX payments_by_user ON payments (user_id, id);
CREATE INDEX payments_by_status ON payments (status, id);
