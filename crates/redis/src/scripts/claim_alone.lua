local id, waits, ttl, turns, attempt, mode, channel, label = unpack(ARGV)

-- The entry of whoever asks.
local function fresh(token)
  return id .. ' ' .. token .. ' ' .. turns .. ' ' .. now .. ' ' .. attempt .. ' ' .. ttl .. ' ' .. now + ttl .. ' ' .. mode
    .. ' ' .. channel .. ' ' .. label
end

-- The shortest way to claim, before the rest is even defined: it is free, and nobody waits or shares.
if not found[1] and not crowd and mode == 'exclusive 1 1' then
  local token = math.max(last + 1, micros)
  local text = int(token)
  if call('SET', LOCK, fresh(text), 'NX', 'PX', ttl) then
    remember(token + turns - 1)
    stir()
    return 'granted ' .. text .. ' ' .. turns
  end
end

