-- The house's account of what it keeps of jobs in review: its fee, or the whole price where that was
-- paid in another currency than the worker is.

ALTER TABLE accounts DROP CONSTRAINT accounts_known_kind;
ALTER TABLE accounts ADD CONSTRAINT accounts_known_kind CHECK (
    (user_id IS NOT NULL AND kind IN ('available', 'held', 'pending'))
    OR (user_id IS NULL AND kind IN ('deposits', 'revenue', 'rewards', 'exit_payable', 'review'))
);
INSERT INTO accounts (id, kind, currency) VALUES
    ('house:review:usd', 'review', 'usd'), ('house:review:credit', 'review', 'credit');

CREATE TRIGGER job_reviews_never_changed_after BEFORE UPDATE ON job_reviews FOR EACH ROW
    WHEN (OLD.resolved_at IS NOT NULL OR NEW.earned <> OLD.earned OR NEW.price <> OLD.price
        OR NEW.user_id <> OLD.user_id OR NEW.buyer_id <> OLD.buyer_id)
    EXECUTE FUNCTION refuse_change();
CREATE TRIGGER job_reviews_never_deleted BEFORE DELETE ON job_reviews FOR EACH ROW
    EXECUTE FUNCTION refuse_change();
