-- In the order of the list, which is not the primary key's.
CREATE INDEX payments_by_user ON payments (user_id, id DESC NULLS LAST);
CREATE INDEX payments_by_status ON payments (status, id);
