CREATE INDEX payments_by_user ON payments (user_id, id);
