-- A published text never changes, and a consent only loses its network.

CREATE FUNCTION refuse_site_text_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'site_texts_are_never_changed'
        USING ERRCODE = 'integrity_constraint_violation',
            CONSTRAINT = 'site_texts_are_never_changed';
END
$$;

CREATE FUNCTION refuse_consent_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'consents_are_never_changed'
        USING ERRCODE = 'integrity_constraint_violation',
            CONSTRAINT = 'consents_are_never_changed';
END
$$;

CREATE TRIGGER site_texts_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON site_texts
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_site_text_change();
CREATE TRIGGER consents_only_erased BEFORE UPDATE ON consents
    FOR EACH ROW WHEN (
        NEW.network <> '' OR NEW.user_id <> OLD.user_id OR NEW.kind <> OLD.kind
        OR NEW.version <> OLD.version OR NEW.given_at <> OLD.given_at
    ) EXECUTE FUNCTION refuse_consent_change();
CREATE TRIGGER consents_never_deleted BEFORE DELETE OR TRUNCATE ON consents
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_consent_change();

CREATE INDEX invitations_newest ON invitations (created_at DESC NULLS LAST, id DESC NULLS LAST);
CREATE INDEX status_notices_newest
    ON status_notices (began_at DESC NULLS LAST, id DESC NULLS LAST);
