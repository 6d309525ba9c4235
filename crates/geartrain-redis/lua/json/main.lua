-- The entry point of the JSON library: `FCALL geartrain_json 1 NAMESPACE DOCUMENT`, as on a geartrain server.

local function main_json(keys, arguments)
  if #keys ~= 1 or #arguments ~= 1 then
    return { err = 'ERR geartrain_json has one key, the namespace, and one argument, the JSON' }
  end
  return run(keys[1], operation.execute, arguments[1])
end
