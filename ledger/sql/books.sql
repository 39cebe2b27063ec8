-- name: next_fence
UPDATE ledger SET fence = fence + 1 RETURNING fence;

-- name: fence
SELECT fence FROM ledger;

-- name: generation
SELECT generation FROM ledger;

-- name: clock
SELECT clock FROM ledger;

-- name: set_clock
UPDATE ledger SET clock = ?;

-- name: add_incarnation
INSERT INTO incarnations (id, pid, boot_id, at_wall_s, host, started, lease_until_s) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: incarnation
SELECT id, host, pid, started, lease_until_s FROM incarnations WHERE id = ?;

-- name: of_process
SELECT id, host, pid, started, lease_until_s FROM incarnations WHERE host = ? AND pid = ? AND started = ?;

-- name: renew
UPDATE incarnations SET lease_until_s = ? WHERE id = ?;

-- name: row
SELECT id, payload, digest, state, wait, reason, version, fence, attempt, deaths, incarnation, baseline,
       since_wall_s, receipt
FROM commands WHERE id = ?;

-- name: row_by_fence
SELECT id, payload, digest, state, wait, reason, version, fence, attempt, deaths, incarnation, baseline,
       since_wall_s, receipt
FROM commands WHERE fence = ? AND fence > 0;

-- name: holder_of_seq
SELECT id FROM commands WHERE device = ? AND seq = ?;

-- name: newer_seq
SELECT id FROM commands
WHERE device = ? AND seq > ? AND (cancels IS NULL OR cancels = ?) ORDER BY seq DESC LIMIT 1;

-- name: unmarked_before
SELECT id FROM commands
WHERE device = ? AND seq < ? AND state <> 'CLOSED' AND (kind <> 'release' OR state <> 'PENDING')
  AND (state = 'PENDING' OR seq = (SELECT MAX(seq) FROM commands WHERE device = ? AND seq < ?))
ORDER BY seq;

-- name: cancel_of
SELECT id FROM (SELECT id, seq, cancels FROM commands WHERE device = ? ORDER BY seq DESC LIMIT 256) AS newest
WHERE cancels = ? ORDER BY seq LIMIT 1;

-- name: open_before
SELECT id FROM commands WHERE device = ? AND seq < ? AND state <> 'CLOSED' ORDER BY seq;

-- name: last_sent
SELECT id, payload, digest, state, wait, reason, version, fence, attempt, deaths, incarnation, baseline,
       since_wall_s, receipt
FROM commands WHERE device = ? AND baseline IS NOT NULL ORDER BY seq DESC LIMIT 1;

-- name: closed_before
SELECT id, payload, digest, state, wait, reason, version, fence, attempt, deaths, incarnation, baseline,
       since_wall_s, receipt
FROM commands
WHERE device = ? AND seq < ? AND state = 'CLOSED' AND baseline IS NOT NULL AND kind <> 'release'
ORDER BY seq DESC LIMIT 64;

-- name: sent_after
SELECT id, payload, digest, state, wait, reason, version, fence, attempt, deaths, incarnation, baseline,
       since_wall_s, receipt
FROM commands WHERE device = ? AND seq > ? AND baseline IS NOT NULL ORDER BY seq DESC;

-- name: open_rows
SELECT id, payload, digest, state, wait, reason, version, fence, attempt, deaths, incarnation, baseline,
       since_wall_s, receipt
FROM commands WHERE device = ? AND state <> 'CLOSED' ORDER BY seq;

-- name: count_open
SELECT COUNT(*) FROM (SELECT 1 FROM commands WHERE state <> 'CLOSED' LIMIT ?) AS found;

-- name: horizon
SELECT seq FROM horizon WHERE device = ?;

-- name: insert
INSERT INTO commands (id, device, seq, kind, cancels, payload, digest, state, version, fence, attempt, deaths,
                      at_wall_s, since_wall_s)
VALUES (?, ?, ?, ?, ?, ?, ?, 'PENDING', 1, 0, 0, 0, ?, ?);

-- name: claim
UPDATE commands
SET fence = ?, attempt = attempt + 1, deaths = ?, incarnation = ?, wait = NULL, version = version + 1
WHERE id = ?;

-- name: adopt
UPDATE commands SET fence = ?, deaths = ?, incarnation = ?, version = version + 1 WHERE id = ?;

-- name: let_go
UPDATE commands SET incarnation = NULL WHERE id = ?;

-- name: wait
UPDATE commands SET wait = ?, version = version + 1 WHERE id = ?;

-- name: move
UPDATE commands
SET state = ?, reason = ?, wait = NULL, since_wall_s = ?, version = version + 1, receipt = COALESCE(?, receipt),
    baseline = COALESCE(?, baseline), plan_digest = COALESCE(?, plan_digest)
WHERE id = ?;

-- name: store_receipt
UPDATE commands SET receipt = ?, version = version + 1 WHERE id = ?;

-- name: logged
SELECT version, fence, incarnation, state,
       (SELECT max(n) FROM events), (SELECT hash FROM events ORDER BY n DESC LIMIT 1),
       (SELECT max(last_n) FROM gaps), (SELECT hash FROM gaps ORDER BY last_n DESC LIMIT 1)
FROM commands WHERE id = ?;

-- name: log
INSERT INTO events (n, command, version, fence, incarnation, at_wall_s, at_mono_s, boot_id, event, facts,
                    state_from, state_to, detail, hash)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: events_of
SELECT n, command, version, fence, incarnation, at_wall_s, at_mono_s, boot_id, event, facts,
       state_from, state_to, detail, hash
FROM events WHERE command = ? ORDER BY n;

-- name: owned_rows
SELECT id, payload, digest, state, wait, reason, version, fence, attempt, deaths, incarnation, baseline,
       since_wall_s, receipt
FROM commands
WHERE state <> 'CLOSED' AND (state <> 'PENDING' OR incarnation IS NOT NULL) ORDER BY device, seq;

-- name: all_ids
SELECT id FROM commands ORDER BY device, seq;

-- name: all_rows
SELECT id, payload, digest, state, wait, reason, version, fence, attempt, deaths, incarnation, baseline,
       since_wall_s, receipt
FROM commands ORDER BY device, seq;
