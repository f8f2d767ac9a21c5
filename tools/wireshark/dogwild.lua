-- Wireshark dissector of dogwild frames, version 3 (docs/reference/stream-protocol.md).
--
-- Use: tshark -X lua_script:tools/wireshark/dogwild.lua -r FILE, or copy it to the folder of
-- personal Lua plugins (Help > About > Folders). It takes EtherType 0x88B5, the UDP ports of
-- groups (22340 to 22539), and any UDP packet that begins as a frame does.

local dogwild = Proto("dogwild", "dogwild frame")

local kinds = { [1] = "position", [2] = "delta", [3] = "hello", [4] = "restore", [5] = "ask",
  [6] = "offer", [7] = "contacts", [8] = "check", [9] = "seek" }
local stays = { [0] = "stays", [1] = "leaves", [2] = "is gone" }
local dtypes = { [0] = "none", [1] = "f32", [2] = "bf16", [3] = "int8", [4] = "int2" }
local VERSION, HEADER, SEAL, HELLO, SEEN, SEEK, MAX_PAYLOAD = 3, 48, 32, 52, 16, 12, 65536

local f = {
  magic = ProtoField.string("dogwild.magic", "Magic"),
  version = ProtoField.uint8("dogwild.version", "Version"),
  kind = ProtoField.uint8("dogwild.kind", "Kind", base.DEC, kinds),
  flags = ProtoField.uint8("dogwild.flags", "Flags", base.HEX),
  sealed = ProtoField.bool("dogwild.flags.sealed", "Tag inside the frame", 8, nil, 1),
  ready = ProtoField.bool("dogwild.flags.ready", "Sender is ready", 8, nil, 2),
  dtype = ProtoField.uint8("dogwild.dtype", "Dtype", base.DEC, dtypes),
  acks_len = ProtoField.uint8("dogwild.acks_len", "Acks"),
  seq = ProtoField.uint8("dogwild.seq", "Sequence number"),
  session = ProtoField.uint64("dogwild.session", "Session", base.HEX),
  epoch = ProtoField.uint32("dogwild.epoch", "Epoch"),
  master = ProtoField.uint8("dogwild.epoch.master", "Streamed by node"),
  sender = ProtoField.uint16("dogwild.sender", "Sender"),
  range = ProtoField.uint16("dogwild.range", "Range"),
  chunk = ProtoField.uint32("dogwild.chunk", "Chunk"),
  chunk_version = ProtoField.uint32("dogwild.chunk_version", "Chunk version"),
  iterations = ProtoField.uint64("dogwild.iterations", "Iterations"),
  payload_len = ProtoField.uint32("dogwild.payload_len", "Payload length"),
  content = ProtoField.uint16("dogwild.content", "Content"),
  part = ProtoField.uint8("dogwild.part", "Part"),
  held = ProtoField.uint8("dogwild.held", "Held, 0.26 ms"),
  acks = ProtoField.bytes("dogwild.acks", "Last delta of each node"),
  payload = ProtoField.bytes("dogwild.payload", "Payload"),
  tag = ProtoField.bytes("dogwild.tag", "Tag"),
  fingerprint = ProtoField.uint64("dogwild.hello.fingerprint", "Fingerprint", base.HEX),
  data = ProtoField.uint64("dogwild.hello.data", "Data", base.HEX),
  first_weights = ProtoField.uint64("dogwild.hello.first_weights", "First weights", base.HEX),
  incarnation = ProtoField.uint64("dogwild.hello.incarnation", "Incarnation", base.HEX),
  chunk_weights = ProtoField.uint32("dogwild.hello.chunk_weights", "Weights of a chunk"),
  chunks = ProtoField.uint32("dogwild.hello.chunks", "Chunks"),
  nodes = ProtoField.uint16("dogwild.hello.nodes", "Nodes"),
  masters = ProtoField.uint16("dogwild.hello.masters", "Nodes that begin with ranges"),
  trained_ms = ProtoField.uint32("dogwild.hello.trained_ms", "Trained, ms"),
  first = ProtoField.uint16("dogwild.hello.first", "First node seen"),
  later = ProtoField.uint8("dogwild.hello.later", "Places for nodes that join"),
  stay = ProtoField.uint8("dogwild.hello.stay", "Sender", base.DEC, stays, 0x7f),
  settled = ProtoField.bool("dogwild.hello.settled", "Its solvers have finished", 8, nil, 0x80),
  seen_node = ProtoField.uint16("dogwild.hello.seen.node", "Node"),
  seen_life = ProtoField.uint32("dogwild.hello.seen.life", "Life", base.HEX),
  seen_epoch = ProtoField.uint32("dogwild.hello.seen.epoch", "Epoch of its range"),
  seen_held = ProtoField.uint32("dogwild.hello.seen.held", "Chunks held", base.DEC, nil, 0x1fffffff),
  by_multicast = ProtoField.bool("dogwild.hello.seen.by_multicast", "Heard by multicast", 32, nil,
    0x20000000),
  gone = ProtoField.bool("dogwild.hello.seen.gone", "Has left", 32, nil, 0x40000000),
  silent = ProtoField.bool("dogwild.hello.seen.silent", "Not heard", 32, nil, 0x80000000),
  seen_iterations = ProtoField.uint32("dogwild.hello.seen.iterations", "Iterations"),
  seek_first = ProtoField.uint16("dogwild.seek.first", "First node asked for"),
  claimed = ProtoField.uint16("dogwild.seek.claimed", "Claimed number (255: none)"),
  link = ProtoField.uint64("dogwild.seal.link", "Link", base.HEX),
  number = ProtoField.uint64("dogwild.seal.number", "Number"),
  mac = ProtoField.bytes("dogwild.seal.tag", "Tag"),
}
dogwild.fields = f

local cut = ProtoExpert.new("dogwild.cut", "Frame is cut short", expert.group.MALFORMED,
  expert.severity.ERROR)
local strange = ProtoExpert.new("dogwild.strange", "Not a frame of version " .. VERSION,
  expert.group.MALFORMED, expert.severity.ERROR)
dogwild.experts = { cut, strange }

local function add_seen(tree, entry, index)
  local node = tree:add(f.seen_node, entry, index)
  node:add_le(f.seen_life, entry(0, 4))
  node:add_le(f.seen_epoch, entry(4, 4))
  for _, part in ipairs({ f.seen_held, f.by_multicast, f.gone, f.silent }) do
    node:add_le(part, entry(8, 4))
  end
  node:add_le(f.seen_iterations, entry(12, 4))
end

local function add_hello(tree, payload)
  if payload:len() < HELLO then return end
  tree:add_le(f.fingerprint, payload(0, 8))
  tree:add_le(f.data, payload(8, 8))
  tree:add_le(f.first_weights, payload(16, 8))
  tree:add_le(f.incarnation, payload(24, 8))
  tree:add_le(f.chunk_weights, payload(32, 4))
  tree:add_le(f.chunks, payload(36, 4))
  tree:add_le(f.nodes, payload(40, 2))
  tree:add_le(f.masters, payload(42, 2))
  tree:add_le(f.trained_ms, payload(44, 4))
  tree:add_le(f.first, payload(48, 2))
  tree:add(f.later, payload(50, 1))
  tree:add(f.stay, payload(51, 1))
  tree:add(f.settled, payload(51, 1))
  local index = payload(48, 2):le_uint()
  for at = HELLO, payload:len() - SEEN, SEEN do
    add_seen(tree, payload(at, SEEN), index)
    index = index + 1
  end
end

local function add_seek(tree, payload)
  if payload:len() < SEEK then return end
  tree:add_le(f.incarnation, payload(0, 8))
  tree:add_le(f.seek_first, payload(8, 2))
  tree:add_le(f.claimed, payload(10, 2))
end

local function add_header(tree, buffer)
  tree:add(f.magic, buffer(0, 2))
  tree:add_le(f.version, buffer(2, 1))
  tree:add_le(f.kind, buffer(3, 1))
  local flags = tree:add_le(f.flags, buffer(4, 1))
  flags:add_le(f.sealed, buffer(4, 1))
  flags:add_le(f.ready, buffer(4, 1))
  tree:add_le(f.dtype, buffer(5, 1))
  tree:add_le(f.acks_len, buffer(6, 1))
  tree:add_le(f.seq, buffer(7, 1))
  tree:add_le(f.session, buffer(8, 8))
  tree:add_le(f.epoch, buffer(16, 4)):add(f.master, buffer(16, 1))
  tree:add_le(f.sender, buffer(20, 2))
  tree:add_le(f.range, buffer(22, 2))
  tree:add_le(f.chunk, buffer(24, 4))
  tree:add_le(f.chunk_version, buffer(28, 4))
  tree:add_le(f.iterations, buffer(32, 8))
  tree:add_le(f.payload_len, buffer(40, 4))
  tree:add_le(f.content, buffer(44, 2))
  tree:add_le(f.part, buffer(46, 1))
  tree:add_le(f.held, buffer(47, 1))
end

-- What is behind a frame: nothing, padding of Ethernet (zeros), or a seal with its own padding.
local function add_seal(tree, buffer, at)
  local rest = buffer:len() - at
  if rest < SEAL then return end
  local from = buffer:len() - SEAL
  -- The highest byte of the number is the length of the padding.
  if buffer(from + 15, 1):uint() ~= rest - SEAL then return end
  local seal = tree:add(dogwild, buffer(from, SEAL), "Seal")
  seal:add_le(f.link, buffer(from, 8))
  seal:add(f.number, buffer(from + 8, 7), buffer(from + 8, 7):le_uint64())
  seal:add(f.mac, buffer(from + 16, 16))
end

function dogwild.dissector(buffer, pinfo, root)
  pinfo.cols.protocol = "dogwild"
  local tree = root:add(dogwild, buffer())
  if buffer:len() < HEADER then
    tree:add_proto_expert_info(cut)
    return
  end
  if buffer(0, 2):string() ~= "DW" or buffer(2, 1):uint() ~= VERSION then
    tree:add_proto_expert_info(strange)
    return
  end
  add_header(tree, buffer)
  local kind, acks, length = buffer(3, 1):uint(), buffer(6, 1):uint(), buffer(40, 4):le_uint()
  pinfo.cols.info = string.format("%s node %d range %d chunk %d version %d seq %d",
    kinds[kind] or ("kind " .. kind), buffer(20, 2):le_uint(), buffer(22, 2):le_uint(),
    buffer(24, 4):le_uint(), buffer(28, 4):le_uint(), buffer(7, 1):uint())
  local at = HEADER + math.floor((acks + 15) / 16) * 16
  local tag = bit.band(buffer(4, 1):uint(), 1) * 16
  if length > MAX_PAYLOAD or buffer:len() < at + length + tag then
    tree:add_proto_expert_info(cut)
    return
  end
  if acks > 0 then tree:add(f.acks, buffer(HEADER, acks)) end
  if length > 0 then
    local payload = buffer(at, length)
    local node = tree:add(f.payload, payload)
    if kind == 3 then add_hello(node, payload) end
    if kind == 9 then add_seek(node, payload) end
  end
  at = at + length
  if tag > 0 then tree:add(f.tag, buffer(at, tag)) end
  add_seal(tree, buffer, at + tag)
end

local function begins_as_ours(buffer, pinfo, root)
  if buffer:len() < HEADER or buffer(0, 2):string() ~= "DW" or buffer(2, 1):uint() ~= VERSION then
    return false
  end
  dogwild.dissector(buffer, pinfo, root)
  return true
end

DissectorTable.get("ethertype"):add(0x88B5, dogwild)
DissectorTable.get("udp.port"):add("22340-22539", dogwild)
dogwild:register_heuristic("udp", begins_as_ours)
