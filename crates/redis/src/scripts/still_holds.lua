-- Stands before a user's own script, which runs only while the hold exists, in the same step.
-- KEYS and ARGV: the user's own, then those of the name, the claim's id and its token.
-- Answers { 1, what the user's script returns }, or { 0 }.
local call, k, a = redis.call, #KEYS, #ARGV
local LOCK, SHARERS, RECORDS, id, token = KEYS[k - 4], KEYS[k - 1], KEYS[k], ARGV[a - 1], ARGV[a]
for i = k - 4, k do KEYS[i] = nil end
ARGV[a - 1], ARGV[a] = nil, nil

local function still_holds()
  local record = call('GET', LOCK) or ''
  local shared = string.match(record, '^=%l+ %d+ %d+$')
  if shared then record = call('HGET', RECORDS, id) or '' end
  local flag, its, first, turns = string.match(record, '^([-+*.])(%x+) (%d+) %l+ %d+ %d+ %d+ (%d+) ')
  if its ~= id or flag == '.' then return false end
  local turn = token - first
  if turn < 0 or turn >= tonumber(turns) then return false end
  if not shared then return true end
  local time = call('TIME')
  return (tonumber(call('ZSCORE', SHARERS, id)) or 0) > time[1] * 1000 + math.floor(time[2] / 1000)
end

if not still_holds() then return { 0 } end
local function write()
