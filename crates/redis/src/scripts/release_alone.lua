-- The shortest way to release: nobody waits or shares.
if not crowd and string.sub(found[1] or '', 1, 33) == ARGV[1] .. ' ' then
  call('DEL', LOCK)
  stir()
  return 'ok'
end

