-- name: lock_looked_at
SELECT EXISTS (
    SELECT 1 FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid = ? AND objid = ?
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
);

-- name: end_own_old_sessions
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = ? AND usename = current_user AND pid <> pg_backend_pid();

-- name: server_run
SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '/' || extract(epoch FROM pg_postmaster_start_time());

-- name: holds_now
UPDATE incarnations SET run = ? WHERE id = ? AND run <> ?;

-- name: now
SELECT extract(epoch FROM clock_timestamp())::float8;

-- name: run_of
SELECT run, ended FROM incarnations WHERE id = ?;

-- name: end_incarnation
UPDATE incarnations SET ended = TRUE WHERE id = ?;

-- name: last_commit
SELECT n FROM sessions WHERE name = ?;

-- name: touch_last_commit
UPDATE sessions SET n = n WHERE name = ?;

-- name: settings
SELECT name, setting, source FROM pg_settings
WHERE name IN ('synchronous_commit', 'fsync', 'full_page_writes', 'data_sync_retry', 'synchronous_standby_names');

-- name: relations_of_others
SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f');

-- name: unlogged
SELECT relname FROM pg_class
WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('battery_hil'))
  AND relkind = 'r' AND relpersistence <> 'p'
ORDER BY relname;
