#!lua flags=allow-oom
-- Marks outbox entries with their current holder, so that a repeat gets a true answer and the sweep knows when to
-- look. If an entry is gone, its order already has a row, and there is nothing to do.
--
-- KEYS  1 outbox   2 due
-- ARGV  1 state    broker (RabbitMQ has confirmed it), parked (it is on the dead-letter queue) or ended (it has a
--                  row, which counts, and has to be settled)
--       2 wait     minimum ms until the sweep may look. Unless the state is ended, the wait is at least as long as
--                  the order has waited so far, up to a minute, so the spacing doubles
--       3 from     the states that an entry may have now, such as ,outbox,broker,
--       4 announce '1' to announce the ids on the channel that has the name of the outbox, marked or not
--       then the order ids
-- Reply how many entries were marked

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local marked = 0

-- There are few distinct values of both, so each is searched for or formatted once, not for each order.
local froms, dues = {}, {}
local function may_come(from)
  if froms[from] == nil then froms[from] = string.find(ARGV[3], ',' .. from .. ',', 1, true) ~= nil end
  return froms[from]
end
local function due_of(accepted)
  if not dues[accepted] then
    local wait = tonumber(ARGV[2])
    if ARGV[1] ~= 'ended' then wait = math.max(wait, math.min(now - tonumber(accepted), 60000)) end
    dues[accepted] = string.format('%.0f', now + wait)
  end
  return dues[accepted]
end

-- A thousand per command, because a command's overhead exceeds its work on one entry.
for first = 5, #ARGV, 1000 do
  local entries = redis.call('HMGET', KEYS[1], unpack(ARGV, first, math.min(first + 999, #ARGV)))
  local writes, due, last = {}, {}, 0
  for nth, entry in ipairs(entries) do
    local id = ARGV[first + nth - 1]
    local from, accepted = string.match(entry or '', '^(%a+)|%d+|%d+|(%d+)|')
    if from and may_come(from) then
      writes[last + 1], writes[last + 2] = id, ARGV[1] .. string.sub(entry, #from + 1)
      due[last + 1], due[last + 2] = due_of(accepted), id
      last = last + 2
    end
  end
  if last > 0 then
    redis.call('HSET', KEYS[1], unpack(writes))
    redis.call('ZADD', KEYS[2], unpack(due))
    marked = marked + last / 2
  end
end
if ARGV[4] == '1' then redis.call('PUBLISH', KEYS[1], table.concat(ARGV, ' ', 5)) end
return marked
