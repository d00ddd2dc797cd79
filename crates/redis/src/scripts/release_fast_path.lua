-- The fast path, without even reading the clock: there are neither waiters nor sharers.
if not has_entries and string.sub(found[1] or '', 1, 33) == ARGV[1] .. ' ' then
  redis.call('DEL', LOCK)
  redis.call('PUBLISH', 'leasehold:name:' .. LOCK, '')
  return 'ok'
end

