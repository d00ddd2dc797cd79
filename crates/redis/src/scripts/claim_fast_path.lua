local id, waits, ttl, turns, attempt, mode, channel, label = unpack(ARGV)

-- The entry of this claim.
local function new_entry(token)
  return id .. ' ' .. token .. ' ' .. turns .. ' ' .. now .. ' ' .. attempt .. ' ' .. ttl .. ' ' .. now + ttl .. ' ' .. mode
    .. ' ' .. channel .. ' ' .. label
end

-- The fast path, before the rest is even defined: the lock is free, without waiters and sharers.
if not found[1] and not has_entries and mode == 'exclusive 1 1' then
  local token = math.max(last + 1, micros)
  local text = int(token)
  if call('SET', LOCK, new_entry(text), 'NX', 'PX', ttl) then
    remember(token + turns - 1)
    notify_observers()
    return 'granted ' .. text .. ' ' .. turns
  end
end

