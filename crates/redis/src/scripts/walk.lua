-- Walks of the whole queue, for what no lock needs each time. The dead holders were removed before.

-- The waiters, without the dead, in their order.
local function waiting()
  local fields, found = call('HGETALL', QUEUE), {}
  for i = 1, #fields, 2 do
    local deadline, record = string.match(fields[i + 1], '^(%d+) (.*)$')
    local e = read(record)
    if e and tonumber(deadline) > now then
      e.ticket, e.token = tonumber(fields[i]) or 0, 0
      found[#found + 1] = e
    end
  end
  table.sort(found, function(a, b) return a.ticket < b.ticket end)
  return found
end

-- The holders, in the order of their tokens.
local function holding()
  if holder then return { holder } end
  local fields, found = kind and call('HGETALL', RECORDS) or {}, {}
  for i = 1, #fields, 2 do
    local e = read(fields[i + 1])
    if e and call('ZSCORE', SHARERS, e.id) then found[#found + 1] = e end
  end
  table.sort(found, function(a, b) return a.token < b.token end)
  return found
end

