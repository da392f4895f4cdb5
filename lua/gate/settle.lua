#!lua flags=allow-oom
-- Settles orders whose outcome is committed in the database: they are no longer in flight. May be repeated, because
-- it acts only if the gate still holds that very order. It must run on a full Redis, or workers could not drain it.
-- A frozen gate is not settled; the sweep does it later. Begins with freeze_if_behind.lua and witness_place.lua.
-- Announces the ids of all these orders on the channel that has the name of the outbox.
--
-- KEYS  1 sale   2 items   3 users   4 outbox   5 age   6 due
-- ARGV  1 epoch  2 seq     the highest known number of this sale. Each return of units takes the next number, so a
--                        gate that is behind must be detected first
--       3 line   4 number  the highest known place of the database in this sale
--       5 read_in      the line of the database in which the outcomes were read. If the gate knows of a later one, they
--                      may be lost with what the database lost: the order may be live again
--       6 count        of the orders that do more than be kept; for each of them: id user outcome winner
--       outcome dropped   refused for stock: the user is freed, but `left` is not raised above 0, because the unit
--                         never existed
--               ended     its row is in a final state: its units are returned, and its record stays with minus
--                         their number, so that the same click gets the same order again
--               replaced  refused because the user had another order: the winner takes the place of the loser;
--                         winner is its record, or '' if there is none
--       then the ids of the orders that are kept: the row exists, and the user keeps the order
--       last           the time by Redis's clock after which the outcomes may no longer be true. The winner may have
--                      ended by then, and would be held for ever
-- Reply not_loaded | frozen | outdated | late | {settled, freed, epoch, seq, line, number}

if is_late() then return 'late' end
if not state then return 'not_loaded' end
if state == 'frozen' then return 'frozen' end
if line > tonumber(ARGV[5]) then return 'outdated' end

local function parse(record)
  local id, sku, quantity = string.match(record, '^(%x+)|[^|]+|[^|]+|([^|]+)|(-?%d+)$')
  return id, sku, tonumber(quantity)
end

-- Gives back the loser's units, minus those of a winner that the gate did not know.
local function replace(user, id, winner)
  local records = redis.call('HGET', KEYS[3], user)
  if not records then return 0 end
  local winner_id, winner_sku, winner_quantity = parse(winner)
  local kept, loser_sku, loser_quantity, holds_winner = {}, nil, nil, false
  for record in string.gmatch(records, '[^,]+') do
    local r_id, r_sku, r_quantity = parse(record)
    if r_id == id then
      -- If the loser has ended, its units are already back.
      loser_sku, loser_quantity = r_sku, math.max(r_quantity, 0)
    else
      kept[#kept + 1] = record
      if r_id == winner_id then holds_winner = true end
    end
  end
  if not loser_sku then return 0 end
  if winner_id and not holds_winner then
    kept[#kept + 1] = winner
    redis.call('HINCRBY', KEYS[2], winner_sku, -winner_quantity)
  end
  redis.call('HINCRBY', KEYS[2], loser_sku, loser_quantity)
  redis.call('HINCRBY', KEYS[1], 'seq', 1)
  if #kept == 0 then redis.call('HDEL', KEYS[3], user)
  else redis.call('HSET', KEYS[3], user, table.concat(kept, ',')) end
  return 1
end

local function drop(user, id)
  local records = redis.call('HGET', KEYS[3], user)
  if not records then return 0 end
  local kept, found, sku, quantity = {}, 0, nil, 0
  for record in string.gmatch(records, '[^,]+') do
    local r_id, r_sku, r_quantity = parse(record)
    if r_id == id then found, sku, quantity = 1, r_sku, r_quantity else kept[#kept + 1] = record end
  end
  if found == 0 then return 0 end
  -- If less than zero is left, the unit that never existed is one of those missing, so it is taken off that debt.
  local left = tonumber(redis.call('HGET', KEYS[2], sku) or '0')
  if left < 0 then redis.call('HINCRBY', KEYS[2], sku, math.min(math.max(quantity, 0), -left)) end
  redis.call('HINCRBY', KEYS[1], 'seq', 1)
  if #kept == 0 then redis.call('HDEL', KEYS[3], user)
  else redis.call('HSET', KEYS[3], user, table.concat(kept, ',')) end
  return 1
end

-- Ended orders kept per user: someone who orders and cancels all day must not fill Redis. admit.lua counts them.
local ENDED_KEPT = 8

local function finish(user, id)
  local records = redis.call('HGET', KEYS[3], user)
  if not records then return 0 end
  local kept, ended, found, found_sku, found_quantity = {}, 0, nil, nil, 0
  for record in string.gmatch(records, '[^,]+') do
    local r_id, r_sku, r_quantity = parse(record)
    if r_id == id and (r_quantity or 0) > 0 then
      found, found_sku, found_quantity = string.gsub(record, '%d+$', '-%0'), r_sku, r_quantity
    else
      -- A record that cannot be read is kept, and must not keep the units of this order.
      if (r_quantity or 0) < 0 then ended = ended + 1 end
      kept[#kept + 1] = record
    end
  end
  if not found then return 0 end
  -- The oldest come first and are dropped first. If nobody may buy again, all are kept, because each one counts.
  local rebuy = redis.call('HGET', KEYS[1], 'rebuy') ~= '0'
  local left = {}
  for at = 1, #kept do
    if rebuy and ended >= ENDED_KEPT and string.find(kept[at], '|%-%d+$') then
      ended = ended - 1
    else
      left[#left + 1] = kept[at]
    end
  end
  left[#left + 1] = found
  redis.call('HINCRBY', KEYS[2], found_sku, found_quantity)
  redis.call('HINCRBY', KEYS[1], 'seq', 1)
  redis.call('HSET', KEYS[3], user, table.concat(left, ','))
  return 1
end

local settled, freed = 0, 0

-- Many ids in one command cost far less than a command for each, but Lua cannot pass more than a few thousand.
local function land(ids, first, last)
  for from = first, last, 1000 do
    local upto = math.min(from + 999, last)
    settled = settled + redis.call('HDEL', KEYS[4], unpack(ids, from, upto))
    redis.call('ZREM', KEYS[5], unpack(ids, from, upto))
    redis.call('ZREM', KEYS[6], unpack(ids, from, upto))
    redis.call('PUBLISH', KEYS[4], table.concat(ids, ' ', from, upto))
  end
end

local others, kept = {}, 7 + 4 * tonumber(ARGV[6])
for at = 7, kept - 1, 4 do
  local id, user, outcome, winner = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  if outcome == 'dropped' then freed = freed + drop(user, id) end
  if outcome == 'ended' then freed = freed + finish(user, id) end
  if outcome == 'replaced' then freed = freed + replace(user, id, winner) end
  others[#others + 1] = id
end
land(others, 1, #others)
land(ARGV, kept, #ARGV - 1)
return {settled, freed, epoch, tonumber(redis.call('HGET', KEYS[1], 'seq')), line, number}
