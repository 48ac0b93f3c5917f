CREATE TRIGGER closures_erased_for_ever BEFORE UPDATE ON closures WHEN OLD.state = 'erased' BEGIN
    SELECT RAISE(ABORT, 'accounts_stay_erased');
END;

CREATE TRIGGER closures_never_deleted BEFORE DELETE ON closures BEGIN
    SELECT RAISE(ABORT, 'accounts_stay_erased');
END;

-- An erasure empties the reason of a review that is over; its money never changes.
DROP TRIGGER job_reviews_never_changed_after;
CREATE TRIGGER job_reviews_never_changed_after BEFORE UPDATE ON job_reviews
WHEN NEW.earned <> OLD.earned OR NEW.price <> OLD.price
    OR NEW.user_id <> OLD.user_id OR NEW.buyer_id <> OLD.buyer_id
    OR (OLD.resolved_at IS NOT NULL AND (
        NEW.reason IS NOT NULL OR NEW.job_id <> OLD.job_id OR NEW.attempt <> OLD.attempt
        OR NEW.currency <> OLD.currency OR NEW.created_at <> OLD.created_at
        OR NEW.review_until <> OLD.review_until OR NEW.state <> OLD.state
        OR NEW.disputed_at IS NOT OLD.disputed_at OR NEW.resolved_at IS NOT OLD.resolved_at
        OR NEW.is_draw <> OLD.is_draw OR NEW.refunded <> OLD.refunded
        OR NEW.withheld <> OLD.withheld
    )) BEGIN
    SELECT RAISE(ABORT, 'ledger_is_append_only');
END;
