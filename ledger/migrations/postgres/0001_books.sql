-- The books in PostgreSQL: what the migrations of SQLite make in several steps, at once.
-- Texts compare byte by byte, whatever the database's locale, so that every engine sorts alike.

CREATE TABLE battery_hil (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL               -- of this schema; and that this table is here says whose database it is
);

CREATE TABLE ledger (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    generation TEXT    NOT NULL,           -- names this ledger; a copy keeps it
    fence      BIGINT  NOT NULL,           -- the last fence given out
    clock      TEXT                        -- the highest wall time that is believed, as JSON
);

CREATE TABLE incarnations (
    id            TEXT COLLATE "C" PRIMARY KEY,
    pid           BIGINT           NOT NULL,
    boot_id       TEXT             NOT NULL,
    at_wall_s     DOUBLE PRECISION NOT NULL,
    host          TEXT             NOT NULL DEFAULT '',
    started       TEXT             NOT NULL DEFAULT '',
    lease_until_s DOUBLE PRECISION NOT NULL DEFAULT 0,
    run           TEXT             NOT NULL  -- of the server, in which it last held its lock
        DEFAULT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
                || '/' || extract(epoch FROM pg_postmaster_start_time()),
    ended         BOOLEAN          NOT NULL DEFAULT FALSE  -- it closed its books itself
);

CREATE TABLE sessions (                     -- the last transaction of each worker that came to be
    name TEXT COLLATE "C" PRIMARY KEY,
    n    BIGINT NOT NULL
);

CREATE TABLE commands (
    id           TEXT   COLLATE "C" PRIMARY KEY,
    device       TEXT   COLLATE "C" NOT NULL,
    seq          BIGINT NOT NULL,
    kind         TEXT   NOT NULL,
    cancels      TEXT   COLLATE "C",       -- a release that is meant for one command
    payload      TEXT   NOT NULL,          -- canonical JSON
    digest       TEXT   NOT NULL,          -- SHA-256 of it
    state        TEXT   NOT NULL,
    wait         TEXT,                     -- why a PENDING command waits
    reason       TEXT,                     -- CLOSED: why; RELEASING: why it is going to be
    version      BIGINT NOT NULL,          -- counts every change
    fence        BIGINT NOT NULL,          -- of the last claim; 0 = never claimed
    attempt      BIGINT NOT NULL,
    deaths       BIGINT NOT NULL DEFAULT 0, -- workers that died while they had it
    incarnation  TEXT   COLLATE "C",
    plan_digest  TEXT,
    baseline     TEXT,                     -- sample from before the first frame of the attempt
    receipt      TEXT,
    at_wall_s    DOUBLE PRECISION NOT NULL, -- accepted
    since_wall_s DOUBLE PRECISION NOT NULL, -- in this state
    UNIQUE (device, seq)
);

CREATE INDEX commands_open ON commands (device, seq) WHERE state <> 'CLOSED';
CREATE UNIQUE INDEX commands_fence ON commands (fence) WHERE fence > 0;

CREATE TABLE events (
    n           BIGINT PRIMARY KEY,
    command     TEXT   COLLATE "C" NOT NULL REFERENCES commands (id),
    version     BIGINT NOT NULL,
    fence       BIGINT NOT NULL,
    incarnation TEXT,
    at_wall_s   DOUBLE PRECISION NOT NULL,
    at_mono_s   DOUBLE PRECISION NOT NULL,
    boot_id     TEXT   NOT NULL,
    event       TEXT   NOT NULL,
    facts       TEXT   NOT NULL,
    state_from  TEXT,
    state_to    TEXT   NOT NULL,
    detail      TEXT   NOT NULL,
    hash        TEXT   NOT NULL            -- SHA-256 over the one before and this one
);

CREATE INDEX events_of_command ON events (command);

-- A command that is not on the books, and whose seq is not above this, may have been carried out: never "new".
CREATE TABLE horizon (
    device TEXT COLLATE "C" PRIMARY KEY,
    seq    BIGINT NOT NULL
);

-- Where the log was pruned: its first and last entry, and the hash of the last, on which the next one builds.
CREATE TABLE gaps (
    first_n BIGINT PRIMARY KEY,
    last_n  BIGINT NOT NULL CHECK (last_n >= first_n),
    hash    TEXT   NOT NULL
);

CREATE FUNCTION battery_hil_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0];
END $$;

CREATE FUNCTION battery_hil_keep_log() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM gaps WHERE OLD.n BETWEEN first_n AND last_n) THEN
        RAISE EXCEPTION 'the event log only grows';
    END IF;
    RETURN OLD;
END $$;

CREATE FUNCTION battery_hil_keep_commands() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state <> 'CLOSED'
       OR NOT EXISTS (SELECT 1 FROM horizon WHERE device = OLD.device AND seq >= OLD.seq) THEN
        RAISE EXCEPTION 'only a closed command behind the horizon may be pruned';
    END IF;
    RETURN OLD;
END $$;

CREATE TRIGGER events_are_never_changed BEFORE UPDATE ON events
FOR EACH ROW EXECUTE FUNCTION battery_hil_refuse('the event log only grows');

CREATE TRIGGER events_are_never_removed BEFORE DELETE ON events
FOR EACH ROW EXECUTE FUNCTION battery_hil_keep_log();

CREATE TRIGGER closed_rows_stay_closed BEFORE UPDATE ON commands
FOR EACH ROW WHEN (OLD.state = 'CLOSED') EXECUTE FUNCTION battery_hil_refuse('a closed command does not change');

CREATE TRIGGER commands_are_never_forgotten BEFORE DELETE ON commands
FOR EACH ROW EXECUTE FUNCTION battery_hil_keep_commands();

CREATE TRIGGER horizon_only_advances BEFORE UPDATE ON horizon
FOR EACH ROW WHEN (NEW.seq < OLD.seq) EXECUTE FUNCTION battery_hil_refuse('the horizon only advances');

-- TRUNCATE passes by every trigger for rows.
CREATE TRIGGER commands_are_never_emptied BEFORE TRUNCATE ON commands
FOR EACH STATEMENT EXECUTE FUNCTION battery_hil_refuse('the books are not emptied');

CREATE TRIGGER events_are_never_emptied BEFORE TRUNCATE ON events
FOR EACH STATEMENT EXECUTE FUNCTION battery_hil_refuse('the event log only grows');

CREATE TRIGGER horizon_is_never_emptied BEFORE TRUNCATE ON horizon
FOR EACH STATEMENT EXECUTE FUNCTION battery_hil_refuse('the horizon only advances');
