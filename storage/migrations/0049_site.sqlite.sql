-- A published text never changes, and a consent only loses its network.

CREATE TRIGGER site_texts_never_updated BEFORE UPDATE ON site_texts BEGIN
    SELECT RAISE(ABORT, 'site_texts_are_never_changed');
END;

CREATE TRIGGER site_texts_never_deleted BEFORE DELETE ON site_texts BEGIN
    SELECT RAISE(ABORT, 'site_texts_are_never_changed');
END;

CREATE TRIGGER consents_only_erased BEFORE UPDATE ON consents
WHEN NEW.network <> '' OR NEW.user_id <> OLD.user_id OR NEW.kind <> OLD.kind
    OR NEW.version <> OLD.version OR NEW.given_at <> OLD.given_at BEGIN
    SELECT RAISE(ABORT, 'consents_are_never_changed');
END;

CREATE TRIGGER consents_never_deleted BEFORE DELETE ON consents BEGIN
    SELECT RAISE(ABORT, 'consents_are_never_changed');
END;

CREATE INDEX invitations_newest ON invitations (created_at, id);
CREATE INDEX status_notices_newest ON status_notices (began_at, id);
