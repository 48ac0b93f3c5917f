-- The staff's own accounts as users, and the time at which a login has proved its second factor last.

-- A member's own account as a user, which the member has declared. The member does no act about it.
CREATE TABLE staff_users (
    staff_id TEXT NOT NULL REFERENCES staff (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    declared_at BIGINT NOT NULL,
    PRIMARY KEY (staff_id, user_id)
);
CREATE INDEX staff_users_by_user ON staff_users (user_id);

-- Acts that move money want a proof of the last minutes. A login proves the factor when it begins.
ALTER TABLE staff_logins ADD COLUMN factor_at BIGINT NOT NULL DEFAULT 0;
UPDATE staff_logins SET factor_at = created_at;
