local _, ttl, turns, guess, record, tries, floor = unpack(ARGV)

-- The fast path, before the rest is even defined: there is no holder, no waiter and no observer. The client guesses the server's
-- clock (0: it cannot). Where the fence is not near that it is lost, restored or old, and the slow path raises it.
if guess ~= '0' and string.sub(record, 1, 1) == 'e' and call('EXISTS', LOCK, '{' .. LOCK .. '}:l', '{' .. LOCK .. '}:o') == 0 then
  local last = tonumber(redis.pcall('INCRBY', FENCE, turns))
  local ahead = last and last - guess
  if ahead and ahead > -100000 and ahead < (turns == '1' and 1000000 or BLOCKS) then
    local token = last - turns + 1
    call('SET', LOCK, '-' .. id .. string.format(' %.0f ', token) .. record, 'PX', ttl)
    return token
  end
  -- Unused: the fence would run away from the clock by a block for each turn.
  if last then call('INCRBY', FENCE, -turns) end
end

