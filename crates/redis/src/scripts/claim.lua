-- Takes or keeps a place, in one step.
-- ARGV: id, 1 to wait or 0 to try, ttl, turns, attempt, mode, channel, label
-- Answers `granted token turns`, or `waiting` (with 0: `busy`) and
-- `ours token held_for others pttl rank label`, where ours is 0 if the holder is another tool's.
local id, waits, ttl, attempt = ARGV[1], ARGV[2] == '1', ARGV[3], ARGV[5]
local me = { ttl = ttl, turns = ARGV[4], mode = ARGV[6], channel = ARGV[7], label = ARGV[8] }

local h = hold()
if holder == id then
  -- Mine: the same token, a new lease, the new label.
  if not h then
    redis.call('DEL', LOCK)
    return granted(grant(id, me, ttl))
  end
  h.channel, h.label = me.channel, me.label
  redis.call('PEXPIRE', LOCK, ttl)
  write_hold(id, h, ttl)
  return granted(h)
end
if not holder then
  local first = head()
  if not first or first == id then
    h = grant(id, me, ttl)
    if first then leave(id) end
    return granted(h)
  end
  -- Somebody has waited since before this claim, and its holder died.
  holder, h = hand_over()
end

local rank = 0
if waits then
  local old = place_of(id)
  if old then
    me.since, me.deadline, me.attempt = old.since, old.deadline, old.attempt
  else
    me.since = int(now())
  end
  if not old or not redis.call('ZRANK', LINE, id) then
    local behind = redis.call('ZREVRANGE', LINE, 0, 0, 'WITHSCORES')[2]
    redis.call('ZADD', LINE, int((tonumber(behind) or 0) + 1), id)
  end
  write_place(id, me, attempt)
  rank = redis.call('ZRANK', LINE, id)
end
local others = redis.call('ZCARD', LINE) - (waits and 1 or 0)
return table.concat({ waits and 'waiting' or 'busy', h and 1 or 0, h and h.token or 0,
  int(h and math.max(0, now() - h.since) or 0), others, int(redis.call('PTTL', LOCK)), rank, h and h.label or '' }, ' ')
