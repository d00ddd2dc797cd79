-- Stands before a user's own script, which runs only while the hold exists, in the same step.
-- KEYS and ARGV: the user's own, then LOCK and ENTRIES, the claim's id and its token.
-- Answers { 1, what the user's script returns }, or { 0 }.
local call, k, a = redis.call, #KEYS, #ARGV
local LOCK, ENTRIES, id, token = KEYS[k - 1], KEYS[k], ARGV[a - 1], ARGV[a]
KEYS[k - 1], KEYS[k], ARGV[a - 1], ARGV[a] = nil, nil, nil, nil

local function still_holds()
  local entry = call('GET', LOCK) or ''
  local kind = string.match(entry, '^(%l+) %d+ %d+$')
  if kind then entry = call('HGET', ENTRIES, id) or '' end
  local its, first, turns, attempt, deadline, as =
    string.match(entry, '^(%x+) (%d+) (%d+) %d+ (%d+) %d+ (%d+) (%l+) ')
  if its ~= id or attempt == CLOSED then return false end
  local turn = token - first
  if turn < 0 or turn >= tonumber(turns) then return false end
  if not kind then return true end
  local time = call('TIME')
  return as == kind and first ~= '0' and tonumber(deadline) > time[1] * 1000 + math.floor(time[2] / 1000)
end

if not still_holds() then return { 0 } end
local function write()
