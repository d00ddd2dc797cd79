-- How waiters learn that their work is done. All are told at once, and each asks again.

-- How many of them one script tells, and how many tickets it looks at.
local TOLD, LOOKED_AT = 100, 1000

-- Tells those behind this ticket for whom a completion of this fire counts, and ends their places. Returns the ticket behind which there
-- may be more.
local function tell(fire, behind)
  local first, told, fields = math.max(behind, gone), 0, {}
  local last = math.min(tickets, first + LOOKED_AT)
  for ticket = first + 1, last do fields[#fields + 1] = 'f' .. ticket end
  local fires = #fields > 0 and call('HMGET', QUEUE, unpack(fields)) or {}
  for n, its in ipairs(fires) do
    local e = its and counts(fire, its) and waiter(first + n)
    if e then
      leave(e)
      notified[#notified + 1] = e
      told = told + 1
      if waiters == 0 then return nil end
      if told == TOLD then return first + n end
    end
  end
  return last < tickets and last or nil
end

-- Tells them, and goes on as after a release. A head that is yet to be told is not admitted.
local function serve(fire, behind)
  local more = tell(fire, behind)
  local e = more and not holder and head()
  local its = e and call('HGET', QUEUE, 'f' .. e.ticket)
  if not (its and counts(fire, its)) then admit_waiters() end
  return more or exhausted and tickets or nil
end

