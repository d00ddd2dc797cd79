local _, ttl, turns, terms, who, tries, floor = unpack(ARGV)

-- The fast path of a free lock: it ends before the functions of the queue are defined, whose definition takes longer than all else.
-- There is no holder, no waiter and no observer; and the fence is a number that is not far ahead of the clock. `number` does the rest.
if not floor and string.sub(terms, 1, 1) == 'e' and call('EXISTS', LOCK, QUEUE, OBSERVED) == 0 then
  local last = tonumber(redis.pcall('GET', FENCE))
  local token = last and math.max(last + 1, micros)
  if token and token - micros <= BLOCKS then
    call('SET', FENCE, int(token + turns - 1), 'EX', 7201)
    call('SET', LOCK, '-' .. id .. ' ' .. int(token) .. ' ' .. terms .. ' ' .. now .. ' ' .. who, 'PX', ttl)
    return token
  end
end

