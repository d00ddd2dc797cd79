-- Nobody holds and nobody waits.
if call('EXISTS', LOCK, QUEUE) == 0 then return nil end

