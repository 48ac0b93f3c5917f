-- readable from 70
-- The name at a store elsewhere of an upload that is dropped before its end: the sweep ends it by this name.
ALTER TABLE artifact_contents ADD COLUMN reference TEXT NOT NULL DEFAULT '';
