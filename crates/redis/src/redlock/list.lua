-- What one of the independent servers does for a change of the list of nodes, in one step. Lists are numbered from 1. List 0 is the one
-- of programs that know of no number.
-- ARGV: verb, and what the verb takes.
--
-- KEYS: {prefix}:rn, the record of this server, a hash that stays; and {prefix}:rt, :ro and :rb, which are in `node.lua`.
--
--       number, nodes      the newest list that is open here, sorted, with commas. The one before it is served too, until `closed`
--       before             the nodes of the list before
--       absent, fresh      the nodes of `nodes` that had no number when it was proposed: those that were not opened with it, since they have
--                          lost their data, and the others. node=blank, with commas
--       closed             1: the list before is not served any more
--       promised           for the change to the next list: the greatest ballot that was promised, `number id`
--       accepted, proposal the greatest ballot of a proposal that was accepted, and the proposal: nodes fresh absent
--       blank              a random text in a server that has no number. It goes with the server's data
--       life               in a server that has no number: the run for the first number that has read its record, for a minute
--       until              no lease that was granted here to list `number` ends later
--       until_before       no lease that was granted here to an earlier list ends later
local LIST, TOKENS, OLDER, BOUND = unpack(KEYS)
local call = redis.call
local verb, next_list = ARGV[1], tonumber(ARGV[2])

-- A day, which no lease exceeds, and the fourth that is added to it. What ends later was noted by a clock that has stepped back since.
local LONGEST = 108000000

local record = {}
local fields = call('HGETALL', LIST)
for i = 1, #fields, 2 do record[fields[i]] = fields[i + 1] end
local number = tonumber(record.number)

-- How long leases of lists before `number` may last, in milliseconds, and a number that no token here exceeds.
local function granted()
  local left = math.max(0, math.min(LONGEST, (tonumber(record.until_before) or 0) - now))
  return left, int(math.max(tonumber(call('GET', BOUND)) or 0, micros))
end

-- Begins a record that stays. The note of leases that was there goes by itself, and a user has no right to `PERSIST`.
local function begin(...)
  call('DEL', LIST)
  call('HSET', LIST, 'until', record['until'] or 0, ...)
end

-- read. Answers the record: `number nodes before absent fresh bound`.
if verb == 'read' then
  local _, bound = granted()
  return { number or -1, record.nodes or '', record.before or '', record.absent or '', record.fresh or '', bound }
end

-- life: the text of a run for the first number. Who promises by it has lost no data since.
if verb == 'life' then
  if not number and not record.blank then
    call('HSET', LIST, 'life', ARGV[3])
    call('PEXPIRE', LIST, math.max(60000, call('PTTL', LIST)))
  end
  return 'ok'
end

-- blank: a random text, for a server without a number. Answers the text that it has.
if verb == 'blank' then
  if number then return '' end
  if not record.blank then begin('blank', ARGV[3]) end
  return record.blank or ARGV[3]
end

-- open: nodes before absent fresh blank bound. Opens list `next_list`. A server without a number has to be the one that was asked for the text
-- `blank`. Tokens begin above `bound` from now on, those of known names too. Answers `open`, or `none` without data.
if verb == 'open' then
  local nodes, before, absent, fresh, blank, bound = unpack(ARGV, 3)
  if number and number >= next_list then return 'open' end
  if not number and (blank == '' or record.blank ~= blank) then return 'none' end
  bound = math.max(bound, tonumber(call('GET', BOUND)) or 0)
  set_bound(BOUND, bound)
  call('UNLINK', TOKENS, OLDER)
  local ends = math.max(tonumber(record['until']) or 0, tonumber(record.until_before) or 0)
  call('HSET', LIST, 'number', next_list, 'nodes', nodes, 'before', before, 'absent', absent, 'fresh', fresh, 'until_before', ends)
  call('HDEL', LIST, 'until', 'closed', 'promised', 'accepted', 'proposal', 'blank')
  return 'open'
end

-- promise and close are about the change from `nodes`, the list before `next_list`, for which this server needs a record of that list.
-- Answers, where it has none: `none`, `behind`, `other nodes`; or `open number`, if that list is open here.
local nodes, ballot, id = ARGV[3], tonumber(ARGV[4]), ARGV[5]
if number and number >= next_list then return { 'open', number } end
if not number and verb == 'promise' and ARGV[6] ~= '' and record.life == ARGV[6] then
  begin('number', 0, 'nodes', nodes)
  number, record.nodes = 0, nodes
end
if not number then return { 'none' } end
if number < next_list - 1 then return { 'behind' } end
if record.nodes ~= nodes then return { 'other', record.nodes } end

local promised, by = string.match(record.promised or '', '^(%d+) (.+)$')
promised = tonumber(promised) or 0
if promised > ballot or promised == ballot and by > id then return { 'later', promised } end
call('HSET', LIST, 'promised', int(ballot) .. ' ' .. id)

-- promise: `life`, for a list that no node has a number of, or nothing. A server without a record has list 0 then.
-- Answers `promised accepted proposal`: what was accepted, by which ballot.
if verb == 'promise' then
  return { 'promised', record.accepted or '', record.proposal or '' }
end

-- close: proposal. Accepts it, and serves the list before `nodes` no longer. Answers `closed left bound`.
call('HSET', LIST, 'accepted', int(ballot) .. ' ' .. id, 'proposal', ARGV[6], 'closed', 1)
local left, bound = granted()
return { 'closed', left, bound }
