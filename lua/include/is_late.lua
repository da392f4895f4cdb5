#!lua
-- For scripts that must not run long after their caller has given up, because somebody else may have acted meanwhile.
--
-- KEYS  none
-- ARGV  last     the time by Redis's clock after which the script is late
-- Reply (none) defines `is_late` for the script that follows

local function is_late()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) > tonumber(ARGV[#ARGV])
end
