#!lua flags=allow-oom
-- Adds units to an item, or takes away units that are neither sold nor in flight. Changes of an item are applied in
-- the order of their versions, each once. The outcome of the last one is kept, in case its caller died before
-- recording it. The requests of the last few are kept as well: a database that loses its last commits gets them back
-- from here, so that a repeated request is known. Begins with freeze_if_behind.lua.
--
-- KEYS  1 sale   2 items   3 stock
-- ARGV  1 epoch  2 seq     the highest known number of this sale
--       3 sku    4 units, below 0 to take away    5 version of the item after the change
--       6 the request as JSON on one line, or ''
-- Reply not_loaded | frozen | unknown_sku | {applied|refused, epoch, seq, left} | {gap, version}

if not state then return 'not_loaded' end
if state == 'frozen' then return 'frozen' end

local left = tonumber(redis.call('HGET', KEYS[2], ARGV[3]) or false)
if not left then return 'unknown_sku' end
local last = redis.call('HMGET', KEYS[1], 'version:' .. ARGV[3], 'outcome:' .. ARGV[3])
local units, version, at = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(last[1] or '1')
if at >= version then return {last[2] or 'applied', epoch, seq, left} end
if at < version - 1 then return {'gap', at} end

local outcome = 'applied'
if units < 0 and left + units < 0 then
  outcome = 'refused'
else
  left = redis.call('HINCRBY', KEYS[2], ARGV[3], units)
  redis.call('HINCRBY', KEYS[3], ARGV[3], units)
end
redis.call('HSET', KEYS[1], 'version:' .. ARGV[3], version, 'outcome:' .. ARGV[3], outcome, 'seq', seq + 1)
if ARGV[6] ~= '' then
  local KEPT, requests = 8, {}
  for line in string.gmatch(redis.call('HGET', KEYS[1], 'requests:' .. ARGV[3]) or '', '[^\n]+') do
    requests[#requests + 1] = line
  end
  requests[#requests + 1] = outcome .. ' ' .. ARGV[6]
  local kept = table.concat(requests, '\n', math.max(1, #requests - KEPT + 1))
  redis.call('HSET', KEYS[1], 'requests:' .. ARGV[3], kept)
end
return {outcome, epoch, seq + 1, left}
