#!lua flags=allow-oom
-- Describes what the gate holds of one sale, at one moment. Writes nothing, but is not declared so: a replica would run
-- it, and a former master that a process is still connected to would refuse buyers for what it no longer knows.
--
-- KEYS  1 sale   2 items   3 stock   4 outbox   5 age
-- ARGV  none
-- Reply not_loaded | {now, {field, value...}, {sku, left...}, {sku, stock...}, waiting, oldest},
--       where oldest is the time at which the oldest entry was accepted, or ''

local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))

local sale = redis.call('HGETALL', KEYS[1])
if #sale == 0 then return 'not_loaded' end

local oldest = redis.call('ZRANGE', KEYS[5], 0, 0, 'WITHSCORES')
return {now, sale, redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3]),
  redis.call('HLEN', KEYS[4]), oldest[2] or ''}
