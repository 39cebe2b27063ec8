-- name: next_fence
UPDATE ledger SET fence = fence + 1 RETURNING fence;

-- name: add_incarnation
INSERT INTO incarnations (id, pid, boot_id, at_wall_s) VALUES (?, ?, ?, ?);

-- name: incarnation
SELECT pid, boot_id FROM incarnations WHERE id = ?;

-- name: row
SELECT payload, digest, state, wait, reason, version, fence, attempt, incarnation, baseline,
       since_wall_s, receipt
FROM commands WHERE id = ?;

-- name: row_by_fence
SELECT id FROM commands WHERE fence = ?;

-- name: holder_of_seq
SELECT id FROM commands WHERE device = ? AND seq = ?;

-- name: newer_seq
SELECT id FROM commands WHERE device = ? AND seq > ? ORDER BY seq DESC LIMIT 1;

-- name: insert
INSERT INTO commands (id, device, seq, kind, payload, digest, state, version, fence, attempt, at_wall_s, since_wall_s)
VALUES (?, ?, ?, ?, ?, ?, 'PENDING', 1, 0, 0, ?, ?);

-- name: claim
UPDATE commands
SET fence = ?, attempt = attempt + 1, incarnation = ?, wait = NULL, version = version + 1
WHERE id = ?;

-- name: adopt
UPDATE commands SET fence = ?, incarnation = ?, version = version + 1 WHERE id = ?;

-- name: wait
UPDATE commands SET wait = ?, version = version + 1 WHERE fence = ?;

-- name: intent
UPDATE commands SET baseline = ?, plan_digest = ? WHERE fence = ?;

-- name: move
UPDATE commands
SET state = ?, reason = ?, wait = NULL, since_wall_s = ?, version = version + 1
WHERE fence = ?;

-- name: store_receipt
UPDATE commands SET receipt = ? WHERE fence = ?;

-- name: log
INSERT INTO events (command, version, fence, incarnation, at_wall_s, at_mono_s, boot_id, event, facts,
                    state_from, state_to, detail)
SELECT id, version, fence, incarnation, ?, ?, ?, ?, ?, ?, state, ? FROM commands WHERE id = ?;

-- name: open_rows
SELECT id, incarnation FROM commands
WHERE state NOT IN ('CLOSED', 'PENDING') ORDER BY device, seq;

-- name: all_ids
SELECT id FROM commands ORDER BY device, seq;
