-- name: audit_page
SELECT n, command, version, fence, incarnation, at_wall_s, at_mono_s, boot_id, event, facts,
       state_from, state_to, detail, hash
FROM events WHERE n >= ? ORDER BY n LIMIT ?;

-- name: audit_gaps
SELECT first_n, last_n, hash FROM gaps ORDER BY first_n;

-- name: audit_gap_at
SELECT first_n, last_n, hash FROM gaps WHERE first_n <= ? AND last_n >= ?;

-- name: audit_covered
SELECT min(n) FROM events WHERE n >= ? AND n <= ?;

-- name: audit_disagreement
SELECT c.id, c.state, c.version, c.fence, e.n, e.state_to, e.version, e.fence
FROM commands c LEFT JOIN events e ON e.n = (SELECT max(n) FROM events WHERE command = c.id)
WHERE e.n IS NULL OR e.state_to <> c.state OR e.version <> c.version OR e.fence <> c.fence
ORDER BY c.id LIMIT 1;

-- name: audit_stray
SELECT n, command FROM events
WHERE NOT EXISTS (SELECT 1 FROM commands WHERE id = events.command) ORDER BY n LIMIT 1;

-- name: audit_rows
SELECT id, payload, digest, state, wait, reason, version, fence, attempt, deaths, incarnation, baseline,
       since_wall_s, receipt, (SELECT max(n) FROM events WHERE command = commands.id)
FROM commands ORDER BY device, seq;

-- name: audit_horizons
SELECT device, seq FROM horizon ORDER BY device;

-- name: newest_wall
SELECT max(at_wall_s) FROM events;

-- name: devices
SELECT DISTINCT device FROM commands ORDER BY device;

-- name: oldest_of_device
SELECT id FROM commands WHERE device = ? ORDER BY seq LIMIT ?;

-- name: newest_seq
SELECT max(seq) FROM (SELECT seq FROM commands WHERE device = ?
                      UNION ALL SELECT seq FROM horizon WHERE device = ?) AS known;

-- name: counted
SELECT (SELECT count(*) FROM commands), (SELECT count(*) FROM events);

-- name: set_horizon
INSERT INTO horizon (device, seq) VALUES (?, ?) ON CONFLICT (device) DO UPDATE SET seq = excluded.seq;

-- name: drop_gap
DELETE FROM gaps WHERE first_n = ?;

-- name: add_gap
INSERT INTO gaps (first_n, last_n, hash) VALUES (?, ?, ?);

-- name: drop_events
DELETE FROM events WHERE command = ?;

-- name: drop_command
DELETE FROM commands WHERE id = ?;
