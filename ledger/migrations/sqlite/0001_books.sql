-- The books: one row per command, and an event log that only grows.

CREATE TABLE ledger (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    generation TEXT    NOT NULL,           -- names this ledger; a copy keeps it
    fence      INTEGER NOT NULL            -- the last fence given out
) STRICT;

CREATE TABLE incarnations (
    id         TEXT PRIMARY KEY,
    pid        INTEGER NOT NULL,
    boot_id    TEXT    NOT NULL,
    at_wall_s  REAL    NOT NULL
) STRICT;

CREATE TABLE commands (
    id           TEXT    PRIMARY KEY,
    device       TEXT    NOT NULL,
    seq          INTEGER NOT NULL,
    kind         TEXT    NOT NULL,
    payload      TEXT    NOT NULL,         -- canonical JSON
    digest       TEXT    NOT NULL,         -- SHA-256 of it
    state        TEXT    NOT NULL,
    wait         TEXT,                     -- why a PENDING command waits
    reason       TEXT,                     -- CLOSED: why; RELEASING: why it is going to be
    version      INTEGER NOT NULL,         -- counts every change
    fence        INTEGER NOT NULL,         -- of the last claim; 0 = never claimed
    attempt      INTEGER NOT NULL,
    incarnation  TEXT,
    plan_digest  TEXT,
    baseline     TEXT,                     -- sample from before the first frame of the attempt
    receipt      TEXT,
    at_wall_s    REAL    NOT NULL,         -- accepted
    since_wall_s REAL    NOT NULL,         -- in this state
    UNIQUE (device, seq)
) STRICT;

CREATE INDEX commands_open ON commands (state) WHERE state <> 'CLOSED';
CREATE UNIQUE INDEX commands_fence ON commands (fence) WHERE fence > 0;

CREATE TABLE events (
    n           INTEGER PRIMARY KEY AUTOINCREMENT,
    command     TEXT    NOT NULL REFERENCES commands (id),
    version     INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    incarnation TEXT,
    at_wall_s   REAL    NOT NULL,
    at_mono_s   REAL    NOT NULL,
    boot_id     TEXT    NOT NULL,
    event       TEXT    NOT NULL,
    facts       TEXT    NOT NULL,
    state_from  TEXT,
    state_to    TEXT    NOT NULL,
    detail      TEXT    NOT NULL
) STRICT;

CREATE TRIGGER events_are_never_changed BEFORE UPDATE ON events
BEGIN SELECT RAISE (ABORT, 'the event log only grows'); END;

CREATE TRIGGER events_are_never_removed BEFORE DELETE ON events
BEGIN SELECT RAISE (ABORT, 'the event log only grows'); END;

CREATE TRIGGER closed_rows_stay_closed BEFORE UPDATE ON commands WHEN OLD.state = 'CLOSED'
BEGIN SELECT RAISE (ABORT, 'a closed command does not change'); END;
