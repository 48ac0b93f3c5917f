CREATE TRIGGER closures_erased_for_ever BEFORE UPDATE ON closures FOR EACH ROW
    WHEN (OLD.state = 'erased') EXECUTE FUNCTION refuse_change();
CREATE TRIGGER closures_never_deleted BEFORE DELETE ON closures FOR EACH ROW
    EXECUTE FUNCTION refuse_change();
CREATE TRIGGER closures_never_emptied BEFORE TRUNCATE ON closures FOR EACH STATEMENT
    EXECUTE FUNCTION refuse_change();

-- An erasure empties the reason of a review that is over; its money never changes.
DROP TRIGGER job_reviews_never_changed_after ON job_reviews;
CREATE TRIGGER job_reviews_never_changed_after BEFORE UPDATE ON job_reviews FOR EACH ROW
    WHEN (NEW.earned <> OLD.earned OR NEW.price <> OLD.price
        OR NEW.user_id <> OLD.user_id OR NEW.buyer_id <> OLD.buyer_id
        OR (OLD.resolved_at IS NOT NULL AND (
            NEW.reason IS NOT NULL OR NEW.job_id <> OLD.job_id OR NEW.attempt <> OLD.attempt
            OR NEW.currency <> OLD.currency OR NEW.created_at <> OLD.created_at
            OR NEW.review_until <> OLD.review_until OR NEW.state <> OLD.state
            OR NEW.disputed_at IS DISTINCT FROM OLD.disputed_at
            OR NEW.resolved_at IS DISTINCT FROM OLD.resolved_at
            OR NEW.is_draw <> OLD.is_draw OR NEW.refunded <> OLD.refunded
            OR NEW.withheld <> OLD.withheld
        )))
    EXECUTE FUNCTION refuse_change();
