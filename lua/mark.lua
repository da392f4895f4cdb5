#!lua flags=allow-oom
-- Marks outbox entries with who holds them now, so that a repeat is told the truth about them and
-- the sweep knows when to look. An entry that is gone has a row already: nothing to do.
--
-- KEYS  1 outbox   2 due
-- ARGV  1 state    broker (RabbitMQ has confirmed it) or parked (it lies on the dead-letter queue)
--       2 due      time in ms at which the sweep may look at them again, '' for never
--       then the order ids
-- Reply how many entries were marked

local marked = 0
for at = 3, #ARGV do
  local entry = redis.call('HGET', KEYS[1], ARGV[at])
  local from = entry and string.match(entry, '^(%a+)|')
  if from == 'outbox' or from == 'broker' then
    redis.call('HSET', KEYS[1], ARGV[at], ARGV[1] .. string.sub(entry, #from + 1))
    if ARGV[2] == '' then
      redis.call('ZREM', KEYS[2], ARGV[at])
    else
      redis.call('ZADD', KEYS[2], ARGV[2], ARGV[at])
    end
    marked = marked + 1
  end
end
return marked
