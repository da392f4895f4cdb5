#!lua flags=allow-oom
-- Takes leases of one scope, many in one call, for one owner and by Redis's clock. The fencing
-- token rises also when Redis lost its data: it is never below the microseconds of that clock.
--
-- KEYS  1 leases
-- ARGV  1 owner    2 ms that the leases last    3 who holds them, for people
--       4 any  those that are free
--         all  all of them, or none
--         wait the same, and the caller waits for them: whoever releases anything in this scope within
--              three seconds tells it
--       then each name
-- Reply {token | -ms...}: the token of a lease that was taken, 0 for one that is free and was not
--       taken because another is held, or minus the ms for which somebody else holds it

-- Texts are put together from texts: to print a large number costs as much as a command.
local time = redis.call('TIME')
local text = time[1] .. string.sub('00000' .. time[2], -6)
local clock, taken = tonumber(text), string.sub(text, 1, -4)
local now = tonumber(taken)
local held = redis.call('HMGET', KEYS[1], '|fence', '|waiting', unpack(ARGV, 5))

local last, token = tonumber(held[1] or '0'), clock
if last >= clock then
  token = last + 1
  text = string.format('%.0f', token)
end
local value = (now + ARGV[2]) .. '|' .. ARGV[1] .. '|' .. text .. '|' .. taken .. '|' .. ARGV[3]

local reply, writes, busy = {}, {'|fence', text}, false
for at = 3, #held do
  local ends = held[at] and tonumber(string.match(held[at], '^%d+'))
  if ends and ends > now then
    reply[at - 2], busy = now - ends, true
  else
    reply[at - 2] = token
    writes[#writes + 1] = ARGV[at + 2]
    writes[#writes + 1] = value
  end
end

if busy and ARGV[4] ~= 'any' then
  for at = 1, #reply do reply[at] = math.min(reply[at], 0) end
  -- All who wait look about once a second: one write a second serves them all.
  if ARGV[4] == 'wait' and (not held[2] or now - tonumber(held[2]) > 1000) then
    redis.call('HSET', KEYS[1], '|waiting', taken)
  end
  return reply
end
if #writes == 2 then return reply end
redis.call('HSET', KEYS[1], unpack(writes))

-- A scope that nobody uses is kept for 31 days, longer than any lease lasts. Each command more would
-- cost every taking, so it is said by the first of each hour, and by those who renew.
if math.floor(clock / 3600000000) ~= math.floor(last / 3600000000) then
  redis.pcall('EXPIRE', KEYS[1], 2678400)
end

-- What a killed holder left has ended, and would stay here until somebody asks for it. One taking of
-- 64, and each of many names, looks at some at random, so that it does not pile up. Nothing of this
-- may fail a taking that is done.
if token % 64 == 0 or #writes > 32 then
  local random = redis.pcall('HRANDFIELD', KEYS[1], math.min(math.max(64, #writes), 200), 'WITHVALUES')
  local ended, text, ends = {}, nil, nil
  for at = 1, #random, 2 do
    if random[at + 1] ~= text then
      text = random[at + 1]
      ends = tonumber(string.match(text, '^(%d+)|'))
    end
    if ends and ends <= now then ended[#ended + 1] = random[at] end
  end
  if #ended > 0 then redis.pcall('HDEL', KEYS[1], unpack(ended)) end
end
return reply
