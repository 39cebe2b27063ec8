-- The whole life of a command: leases, cancels, deaths counted, a clock mark, a chained log, and a horizon.

ALTER TABLE ledger ADD COLUMN clock TEXT;                -- the highest wall time that is believed, as JSON

ALTER TABLE incarnations ADD COLUMN host TEXT NOT NULL DEFAULT '';
ALTER TABLE incarnations ADD COLUMN started TEXT NOT NULL DEFAULT '';
ALTER TABLE incarnations ADD COLUMN lease_until_s REAL NOT NULL DEFAULT 0;

ALTER TABLE commands ADD COLUMN cancels TEXT;            -- a release that is meant for one command
ALTER TABLE commands ADD COLUMN deaths INTEGER NOT NULL DEFAULT 0;  -- workers that died while they had it

ALTER TABLE events ADD COLUMN hash TEXT NOT NULL DEFAULT '';  -- SHA-256 over the one before and this one

-- A command that is not on the books, and whose seq is not above this, may have been carried out: never "new".
CREATE TABLE horizon (
    device TEXT PRIMARY KEY,
    seq    INTEGER NOT NULL
) STRICT;

-- Where the log was pruned: its first and last entry, and the hash of the last, on which the next one builds.
CREATE TABLE gaps (
    first_n INTEGER PRIMARY KEY,
    last_n  INTEGER NOT NULL CHECK (last_n >= first_n),
    hash    TEXT    NOT NULL
) STRICT;

CREATE INDEX events_of_command ON events (command);

-- What is open is found without passing what is closed, however much of that there is.
DROP INDEX commands_open;
CREATE INDEX commands_open ON commands (device, seq) WHERE state <> 'CLOSED';

DROP TRIGGER events_are_never_removed;
CREATE TRIGGER events_are_never_removed BEFORE DELETE ON events
WHEN NOT EXISTS (SELECT 1 FROM gaps WHERE OLD.n BETWEEN first_n AND last_n)
BEGIN SELECT RAISE (ABORT, 'the event log only grows'); END;

CREATE TRIGGER commands_are_never_forgotten BEFORE DELETE ON commands
WHEN OLD.state <> 'CLOSED'
  OR NOT EXISTS (SELECT 1 FROM horizon WHERE device = OLD.device AND seq >= OLD.seq)
BEGIN SELECT RAISE (ABORT, 'only a closed command behind the horizon may be pruned'); END;

CREATE TRIGGER horizon_only_advances BEFORE UPDATE ON horizon WHEN NEW.seq < OLD.seq
BEGIN SELECT RAISE (ABORT, 'the horizon only advances'); END;
