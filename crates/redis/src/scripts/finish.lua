-- Ends what there is of a claim whose work is done, and goes on telling the waiters.
-- ARGV: id or nothing, the number of the completion's fire, the ticket behind which waiters are to be told
-- Returns the ticket behind which there may be more.
local _, fire, behind = unpack(ARGV)
local e = mine()
if e then drop(e) end
local more = serve(fire, tonumber(behind))
commit()
return more
