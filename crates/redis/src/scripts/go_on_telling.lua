-- Goes on telling the waiters of work that is done: `finish` is a script for one name. Without a completion it goes on as after a release.
-- ARGV: the ticket behind which waiters are to be told
-- Answers the ticket behind which there may be more, or nothing.
local done = completion()
return finish(KEYS, { '', done and done.fire or '', ARGV[1] })
