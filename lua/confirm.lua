#!lua flags=allow-oom
-- Marks outbox entries as confirmed by the broker, so that a repeat is told the truth about them,
-- and puts off the sweep. An entry that is gone has a row already: nothing to do.
--
-- KEYS  1 outbox   2 due
-- ARGV  1 due      time in ms at which the sweep may look at them again
--       then the order ids
-- Reply how many entries were marked

local marked = 0
for at = 2, #ARGV do
  local entry = redis.call('HGET', KEYS[1], ARGV[at])
  if entry and string.sub(entry, 1, 7) == 'outbox|' then
    redis.call('HSET', KEYS[1], ARGV[at], 'broker|' .. string.sub(entry, 8))
    redis.call('ZADD', KEYS[2], ARGV[1], ARGV[at])
    marked = marked + 1
  end
end
return marked
