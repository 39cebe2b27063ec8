-- name: group_begin
SAVEPOINT part;

-- name: group_undo
ROLLBACK TO part;

-- name: group_end
RELEASE part;
