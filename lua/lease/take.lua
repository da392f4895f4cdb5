#!lua flags=allow-oom
-- Takes leases of one scope, many in one call, for one owner and by Redis's clock. The fencing token rises even if
-- Redis lost its data, because it is never below that clock's microseconds.
--
-- KEYS  1 leases
-- ARGV  1 owner    2 ms that the leases last    3 name of the holder, for people
--       4 any  takes those that are free
--         all  takes all of them, or none
--         wait like all, and the caller waits: a release in this scope within three seconds notifies it
--       5 ms by which the clock may step: a failover brings another host's. A lease that has ended stays taken for as long,
--         unless the caller has seen it unchanged, by a clock of its own, for as long as it was taken for
--       6 how many such leases the caller knows, then for each: name, end
--       then each name
-- Reply {token | 0 | {left, end, lasts}...}: the token of a lease that was taken; 0 for one that is free but was not
--       taken, because another one is held; or of one that is held: the ms until its end, not above zero if it has ended,
--       its end, and the ms from when it was taken to its end

-- Strings are built from strings, because formatting a large number costs as much as a command.
local time = redis.call('TIME')
local text = time[1] .. string.sub('00000' .. time[2], -6)
local clock, taken = tonumber(text), string.sub(text, 1, -4)
local now = tonumber(taken)
local step, first, known = tonumber(ARGV[5]), 7 + 2 * tonumber(ARGV[6]), {}
for at = 7, first - 1, 2 do known[ARGV[at]] = ARGV[at + 1] end
local held = redis.call('HMGET', KEYS[1], '|fence', '|waiting', unpack(ARGV, first))

local last, token = tonumber(held[1] or '0'), clock
if last >= clock then
  token = last + 1
  text = string.format('%.0f', token)
end
local value = (now + ARGV[2]) .. '|' .. ARGV[1] .. '|' .. text .. '|' .. taken .. '|' .. ARGV[3]

local reply, writes, busy = {}, {'|fence', text}, false
for at = 3, #held do
  local name = ARGV[first + at - 3]
  local ends = held[at] and tonumber(string.match(held[at], '^%d+'))
  -- One without an owner was released, and is only kept for its minimum time.
  if ends and ends > now - step
    and (ends > now or known[name] ~= string.match(held[at], '^%d+') and not string.match(held[at], '^%d+|0+|')) then
    local since = tonumber(string.match(held[at], '^%d+|%x+|%d+|(%d+)|')) or now
    reply[at - 2], busy = {ends - now, ends, ends - since}, true
  else
    reply[at - 2] = token
    writes[#writes + 1] = name
    writes[#writes + 1] = value
  end
end

if busy and ARGV[4] ~= 'any' then
  for at = 1, #reply do
    if reply[at] == token then reply[at] = 0 end
  end
  -- Waiters poll about once a second, so one write a second is enough for all of them.
  if ARGV[4] == 'wait' and (not held[2] or now - tonumber(held[2]) > 1000) then
    redis.call('HSET', KEYS[1], '|waiting', taken)
  end
  return reply
end
if #writes == 2 then return reply end
redis.call('HSET', KEYS[1], unpack(writes))

-- An unused scope is kept for 31 days, longer than any lease lasts. One more command would slow down every call, so
-- only the first call of each hour sets the expiry, and so do renewals.
if math.floor(clock / 3600000000) ~= math.floor(last / 3600000000) then
  redis.pcall('EXPIRE', KEYS[1], 2678400)
end

-- The leases of a killed holder end, but would stay in the hash until someone takes them again. One call in 64, and
-- each call with many names, checks some at random, so that they do not pile up. pcall, because the leases are
-- already taken and this must not fail the call.
if token % 64 == 0 or #writes > 32 then
  local random = redis.pcall('HRANDFIELD', KEYS[1], math.min(math.max(64, #writes), 200), 'WITHVALUES')
  local ended, text, ends = {}, nil, nil
  for at = 1, #random, 2 do
    if random[at + 1] ~= text then
      text = random[at + 1]
      ends = tonumber(string.match(text, '^(%d+)|'))
    end
    if ends and ends <= now - step then ended[#ended + 1] = random[at] end
  end
  if #ended > 0 then redis.pcall('HDEL', KEYS[1], unpack(ended)) end
end
return reply
