/* Reads the nodes of a serialized GraphDef into arrays: where each node ends, its name, which nodes are alike, and which
 * node and port each input is. What is read of every node of a graph is read here; Python looks into one node of each kind.
 *
 * Source of the format: the encoding of protocol buffers (https://protobuf.dev/programming-guides/encoding) and the field
 * numbers of node_def.proto. Only what protobuf itself writes is read: fields in the order of their numbers, numbers in as
 * few bytes as they need. Python has protobuf write everything else again first.
 *
 * Nothing is allocated here and nothing is kept: Python hands over arrays of the sizes that the functions before gave.
 */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* Tags: field number, and 2 for "with a length". In a GraphDef, in a NodeDef, in an entry of a NodeDef's attributes. */
enum { NODE = 0x0a };
enum { NAME = 0x0a, OP = 0x12, INPUT = 0x1a, DEVICE = 0x22, ATTR = 0x2a, DEBUG_INFO = 0x32, FULL_TYPE = 0x3a };
enum { KEY = 0x0a, VALUE = 0x12 };
/* In the value of an attribute: a list, a number, a type; in a list: types, each in as many bytes as it needs. */
enum { LIST = 0x0a, NUMBER = 0x18, TYPE = 0x30, TYPES = 0x32 };

/* What an input is, where it is no node. */
enum { CONTROL = -1, UNKNOWN = -2, UNKNOWN_CONTROL = -3 };
#define MAX_DIGITS 9 /* of a port; larger numbers than any op has ports */

typedef struct {
  const uint8_t *at;
  const uint8_t *end;
} bytes;

typedef struct {
  bytes name, op, device, attributes;
  uint64_t inputs;
} node;

static uint64_t size_of(bytes text) { return (uint64_t)(text.end - text.at); }

/* Takes the field with which some bytes begin off them: its tag and its content. Returns 0 if they begin with none. */
static int take_field(bytes *rest, uint8_t *tag, bytes *content) {
  uint64_t length = 0;
  if (rest->at == rest->end) return 0;
  *tag = *rest->at++;
  for (int shift = 0; shift < 35; shift += 7) {
    if (rest->at == rest->end) return 0;
    const uint8_t byte = *rest->at++;
    length |= (uint64_t)(byte & 0x7f) << shift;
    if (byte & 0x80) continue;
    if ((shift > 0 && byte == 0) || length > size_of(*rest)) return 0;
    content->at = rest->at;
    content->end = rest->at += length;
    return 1;
  }
  return 0;
}

/* Whether the content of an attribute's field is a key and a value, as protobuf writes it. */
static int is_entry(bytes rest) {
  uint8_t tag;
  bytes content;
  if (!take_field(&rest, &tag, &content) || tag != KEY) return 0;
  return take_field(&rest, &tag, &content) && tag == VALUE && rest.at == rest.end;
}

/* Reads a node but for the names of its inputs. Returns 0 if protobuf would not write it so. What follows a field that
 * this source does not know is not looked at, if is_tail_opaque is set. */
static int read_node(bytes rest, int is_tail_opaque, node *found) {
  const bytes nothing = {rest.end, rest.end};
  uint8_t tag, last = 0;
  bytes content;
  *found = (node){nothing, nothing, nothing, nothing, 0};
  while (rest.at < rest.end) {
    const uint8_t *start = rest.at;
    if (*start > FULL_TYPE && is_tail_opaque) break;
    if (!take_field(&rest, &tag, &content)) return 0;
    if (tag < last || (tag == last && tag != INPUT && tag != ATTR)) return 0;
    if (tag == NAME) found->name = content;
    else if (tag == OP) found->op = content;
    else if (tag == DEVICE) found->device = content;
    else if (tag == INPUT) ++found->inputs;
    else if (tag == ATTR) {
      if (!is_entry(content)) return 0;
      if (last != ATTR) found->attributes.at = start;
      found->attributes.end = rest.at;
    } else if (tag != DEBUG_INFO && tag != FULL_TYPE) return 0;
    last = tag;
  }
  return 1;
}

/* The content of a node's field in the graph; the bytes are known to be one. */
static bytes content_of(bytes field) {
  uint8_t tag;
  bytes content = {field.end, field.end};
  take_field(&field, &tag, &content);
  return content;
}

static int is_equal(bytes one, bytes other) {
  return size_of(one) == size_of(other) && memcmp(one.at, other.at, size_of(one)) == 0;
}

/* Mixes a text into a hash, eight bytes at a time. */
static uint64_t hash_more(uint64_t hash, bytes text) {
  hash = (hash ^ size_of(text)) * 0x9e3779b97f4a7c15;
  while (text.at < text.end) {
    const uint64_t left = size_of(text), taken = left < 8 ? left : 8;
    uint64_t word = 0;
    memcpy(&word, text.at, taken);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32; /* a difference in a word's last bytes is in the upper half alone */
    text.at += taken;
  }
  return hash;
}

static uint64_t hash_of(bytes text) { return hash_more(0, text); }

/* A hash table of numbers: a power of two of entries, -1 where free, at most half of them taken. */
typedef struct {
  int32_t *entries;
  uint64_t mask;
} table;

static void clear(table numbers) { memset(numbers.entries, 0xff, (numbers.mask + 1) * sizeof(int32_t)); }

static uint64_t slot_of(table numbers, uint64_t hash) { return (hash * 0xd6e8feb86659fd93) >> 32 & numbers.mask; }

/* Whether the value of an attribute is a type, a number, or a list of types: what gives types and ports. */
static int gives_ports(bytes value) {
  uint8_t tag;
  bytes list;
  if (value.at == value.end) return 0;
  if (*value.at != LIST) return *value.at == TYPE || *value.at == NUMBER;
  return take_field(&value, &tag, &list) && list.at < list.end && *list.at == TYPES;
}

/* Takes the next attribute that an op can define off the attributes of a node. Those whose name begins with an underscore
 * are TensorFlow's own marks (a place, shapes), but for what gives ports: a function of the library may define such. */
static int take_attribute(bytes *rest, bytes *entry) {
  uint8_t tag;
  bytes key, value;
  while (take_field(rest, &tag, entry)) {
    bytes inside = *entry;
    if (!take_field(&inside, &tag, &key) || key.at == key.end || *key.at != '_') return 1;
    if (take_field(&inside, &tag, &value) && gives_ports(value)) return 1;
  }
  return 0;
}

/* Attributes are a map, which protobuf writes in any order. */
static uint64_t hash_of_kind(const node *one) {
  uint64_t hash = hash_of(one->op);
  bytes rest = one->attributes, entry;
  while (take_attribute(&rest, &entry)) hash += hash_of(entry);
  return hash;
}

static int has_entry(bytes attributes, bytes wanted) {
  uint8_t tag;
  bytes entry;
  while (take_field(&attributes, &tag, &entry)) if (is_equal(entry, wanted)) return 1;
  return 0;
}

static int is_one_kind(const node *one, const node *other) {
  bytes rest = one->attributes, entry;
  int64_t more = 0;
  if (!is_equal(one->op, other->op)) return 0;
  for (; take_attribute(&rest, &entry); ++more) if (!has_entry(other->attributes, entry)) return 0;
  for (rest = other->attributes; take_attribute(&rest, &entry);) --more;
  return more == 0;
}

typedef struct {
  const uint8_t *data;
  uint64_t node_count;
  const uint64_t *ends; /* of each node's field */
  int32_t is_tail_opaque;
  /* found by amp_tf_measure_nodes */
  uint64_t input_count;
  uint64_t names_size;
  /* one entry a node */
  uint8_t *names;          /* all names, each with a NUL behind it; names_size bytes */
  uint64_t *name_ends;     /* of each name in there, without its NUL */
  uint32_t *input_counts;
  int32_t *kinds;          /* nodes of one op with the same attributes have the same number */
  int32_t *firsts;         /* the first node of each kind; kind_count entries are filled */
  int32_t *devices;        /* nodes with the same device have the same number */
  int32_t *device_firsts;
  /* one entry an input */
  int32_t *sources;        /* the node, or one of CONTROL, UNKNOWN, UNKNOWN_CONTROL */
  int32_t *ports;
  /* room for three hash tables, each of a power of two of at least twice node_count entries */
  int32_t *entries;
  uint64_t entry_count;    /* of one */
  /* found by amp_tf_read_nodes */
  uint64_t kind_count;
  uint64_t device_count;
  int32_t duplicate;       /* a node with the name of one before it, -1 if there is none */
} graph;

static bytes field_at(const graph *all, uint64_t number) {
  return (bytes){all->data + (number ? all->ends[number - 1] : 0), all->data + all->ends[number]};
}

static int node_at(const graph *all, uint64_t number, node *found) {
  return read_node(content_of(field_at(all, number)), all->is_tail_opaque, found);
}

static bytes name_at(const graph *all, uint64_t number) {
  return (bytes){all->names + (number ? all->name_ends[number - 1] + 1 : 0), all->names + all->name_ends[number]};
}

/* The number of the node with a name, -1 if there is none; where it would be in the table. */
static int32_t find_node(const graph *all, table numbers, bytes name, uint64_t *slot) {
  for (*slot = slot_of(numbers, hash_of(name));; *slot = (*slot + 1) & numbers.mask) {
    const int32_t number = numbers.entries[*slot];
    if (number < 0 || is_equal(name_at(all, number), name)) return number;
  }
}

/* What is alike gets one number. */
typedef struct {
  table numbers;
  int32_t *of_nodes;
  int32_t *firsts; /* the first node of each number */
  uint64_t count;
} groups;

static void set_group(const graph *all, groups *found, uint64_t number, const node *one, uint64_t hash,
                      int (*are_alike)(const node *, const node *)) {
  node other;
  for (uint64_t slot = slot_of(found->numbers, hash);; slot = (slot + 1) & found->numbers.mask) {
    int32_t *group = &found->numbers.entries[slot];
    if (*group < 0) {
      found->firsts[found->count] = (int32_t)number;
      *group = (int32_t)found->count++;
    } else {
      node_at(all, found->firsts[*group], &other);
      if (!are_alike(one, &other)) continue;
    }
    found->of_nodes[number] = *group;
    return;
  }
}

static int is_on_one_device(const node *one, const node *other) { return is_equal(one->device, other->device); }

static void set_name(graph *all, table numbers, uint64_t number, const node *one) {
  const uint64_t start = number ? all->name_ends[number - 1] + 1 : 0, end = start + size_of(one->name);
  uint64_t slot;
  memcpy(all->names + start, one->name.at, end - start);
  all->names[end] = 0;
  all->name_ends[number] = end;
  if (find_node(all, numbers, one->name, &slot) < 0) numbers.entries[slot] = (int32_t)number;
  else if (all->duplicate < 0) all->duplicate = (int32_t)number;
}

/* Takes ":port" off a name. Returns the port, or -1 where there is none. */
static int32_t take_port(bytes *text) {
  int32_t port = 0;
  const uint8_t *at = text->end;
  while (at > text->at && at[-1] >= '0' && at[-1] <= '9') --at;
  if (at == text->at || at[-1] != ':' || at == text->end || text->end - at > MAX_DIGITS) return -1;
  for (const uint8_t *digit = at; digit < text->end; ++digit) port = port * 10 + (*digit - '0');
  text->end = at - 1;
  return port;
}

static int32_t read_input(const graph *all, table numbers, bytes text, int32_t *port) {
  uint64_t slot;
  *port = 0;
  if (text.at < text.end && *text.at == '^') {
    ++text.at;
    return find_node(all, numbers, text, &slot) < 0 ? UNKNOWN_CONTROL : CONTROL;
  }
  int32_t number = find_node(all, numbers, text, &slot);
  if (number >= 0) return number;
  if ((*port = take_port(&text)) < 0) return UNKNOWN;
  number = find_node(all, numbers, text, &slot);
  return number < 0 ? UNKNOWN : number;
}

static void find_inputs(graph *all, table numbers) {
  uint64_t input = 0;
  for (uint64_t number = 0; number < all->node_count; ++number) {
    bytes rest = content_of(field_at(all, number)), content;
    uint8_t tag;
    const uint64_t first = input;
    while (rest.at < rest.end && *rest.at <= INPUT && take_field(&rest, &tag, &content)) {
      if (tag != INPUT) continue;
      all->sources[input] = read_input(all, numbers, content, &all->ports[input]);
      ++input;
    }
    all->input_counts[number] = (uint32_t)(input - first);
  }
}

/* Where the number of a type stands in the value of an attribute: the value's only field, or an entry of its list. NULL
 * where it is written in another way than in one byte. */
static const uint8_t *find_type(bytes value, int32_t index) {
  uint8_t tag;
  bytes list, types;
  if (index < 0) return size_of(value) == 2 && value.at[0] == TYPE && value.at[1] < 0x80 ? value.at + 1 : NULL;
  if (!take_field(&value, &tag, &list) || tag != LIST || value.at < value.end) return NULL;
  if (!take_field(&list, &tag, &types) || tag != TYPES || list.at < list.end) return NULL;
  for (const uint8_t *type = types.at; type < types.end; ++type) if (*type >= 0x80) return NULL;
  return (uint64_t)index < size_of(types) ? types.at + index : NULL;
}

/* The size of the struct that the functions below take; Python compares it with its own. */
EXPORT uint64_t amp_tf_graph_size(void) { return sizeof(graph); }

/* Finds the node fields with which a serialized GraphDef begins.
 *
 * ends: gets the end of each, or NULL to count them.
 * Returns how many there are, -1 if one is cut off or not written as protobuf writes it. */
EXPORT int64_t amp_tf_find_nodes(const uint8_t *data, uint64_t size, uint64_t *ends) {
  bytes rest = {data, data + size}, content;
  int64_t count = 0;
  uint8_t tag;
  while (rest.at < rest.end && *rest.at == NODE) {
    if (!take_field(&rest, &tag, &content) || count == INT32_MAX) return -1;
    if (ends != NULL) ends[count] = (uint64_t)(rest.at - data);
    ++count;
  }
  return count;
}

/* Finds how large the arrays must be. Returns 1, or 0 if a node is not written as protobuf writes it. */
EXPORT int amp_tf_measure_nodes(graph *all) {
  node one;
  all->input_count = 0;
  all->names_size = 0;
  for (uint64_t number = 0; number < all->node_count; ++number) {
    if (!node_at(all, number, &one)) return 0;
    all->input_count += one.inputs;
    all->names_size += size_of(one.name) + 1;
  }
  return 1;
}

/* Fills the arrays, which amp_tf_measure_nodes has measured for the same bytes. */
EXPORT void amp_tf_read_nodes(graph *all) {
  const uint64_t size = all->entry_count;
  groups kinds = {{all->entries, size - 1}, all->kinds, all->firsts, 0};
  groups devices = {{all->entries + size, size - 1}, all->devices, all->device_firsts, 0};
  const table names = {all->entries + 2 * size, size - 1};
  node one;
  clear(kinds.numbers);
  clear(devices.numbers);
  clear(names);
  all->duplicate = -1;
  for (uint64_t number = 0; number < all->node_count; ++number) {
    node_at(all, number, &one);
    set_group(all, &kinds, number, &one, hash_of_kind(&one), is_one_kind);
    set_group(all, &devices, number, &one, hash_of(one.device), is_on_one_device);
    set_name(all, names, number, &one);
  }
  all->kind_count = kinds.count;
  all->device_count = devices.count;
  find_inputs(all, names);
}

/* Finds the bytes that hold types of nodes, so that these can be changed in place.
 *
 * count: how many types are looked for; each is given by its node, the number of its attribute's name, and its place in
 * the attribute's list, -1 for a single type.
 * names: the attributes' names, each ends where name_ends says.
 * places: gets the place of each in the data, 0 where it is not written in one byte of its own. */
EXPORT void amp_tf_find_types(const graph *all, uint64_t count, const int32_t *nodes, const int32_t *attributes,
                              const int32_t *indices, const uint8_t *names, const uint64_t *name_ends, uint64_t *places) {
  for (uint64_t number = 0; number < count; ++number) {
    const int32_t name = attributes[number];
    const bytes wanted = {names + (name ? name_ends[name - 1] : 0), names + name_ends[name]};
    node one;
    bytes entry, key, value;
    uint8_t tag;
    places[number] = 0;
    node_at(all, nodes[number], &one);
    while (take_field(&one.attributes, &tag, &entry)) {
      if (!take_field(&entry, &tag, &key) || tag != KEY || !is_equal(key, wanted)) continue;
      const uint8_t *found = NULL;
      if (take_field(&entry, &tag, &value) && tag == VALUE && entry.at == entry.end) found = find_type(value, indices[number]);
      places[number] = found ? (uint64_t)(found - all->data) : 0; /* of equal keys protobuf takes the last */
    }
  }
}

/* Takes the next control input off the inputs of a node. */
static int take_control(bytes *rest, bytes *text) {
  uint8_t tag;
  while (rest->at < rest->end && *rest->at <= INPUT && take_field(rest, &tag, text)) {
    if (tag == INPUT && text->at < text->end && *text->at == '^') return 1;
  }
  return 0;
}

static int has_equal_controls(bytes one, bytes other) {
  bytes text[2];
  for (;;) {
    const int more = take_control(&one, &text[0]);
    if (more != take_control(&other, &text[1])) return 0;
    if (!more) return 1;
    if (!is_equal(text[0], text[1])) return 0;
  }
}

/* Whether two values of an attribute are equal, or both types, or both lists of as many types. */
static int differs_in_types_alone(bytes one, bytes other) {
  uint8_t tag[2];
  bytes list[2];
  if (is_equal(one, other)) return 1;
  if (one.at == one.end || other.at == other.end || *one.at != *other.at) return 0;
  if (*one.at == TYPE) return 1;
  if (!take_field(&one, &tag[0], &list[0]) || !take_field(&other, &tag[1], &list[1]) || tag[0] != LIST) return 0;
  if (list[0].at == list[0].end || *list[0].at != TYPES || list[1].at == list[1].end || *list[1].at != TYPES) return 0;
  return size_of(list[0]) == size_of(list[1]);
}

static int find_value(bytes attributes, bytes wanted, bytes *value) {
  bytes entry, key;
  uint8_t tag;
  while (take_field(&attributes, &tag, &entry)) {
    if (take_field(&entry, &tag, &key) && is_equal(key, wanted)) return take_field(&entry, &tag, value);
  }
  return 0;
}

static int count_fields(bytes rest) {
  int count = 0;
  uint8_t tag;
  bytes content;
  while (take_field(&rest, &tag, &content)) ++count;
  return count;
}

static int has_equal_attributes(const node *one, const node *other) {
  bytes rest = one->attributes, entry, key, value, found;
  uint8_t tag;
  if (count_fields(rest) != count_fields(other->attributes)) return 0;
  while (take_field(&rest, &tag, &entry)) {
    if (!take_field(&entry, &tag, &key) || !take_field(&entry, &tag, &value)) return 0;
    if (!find_value(other->attributes, key, &found) || !differs_in_types_alone(value, found)) return 0;
  }
  return 1;
}

/* The first node, from one on, that may not have, in an edited graph, the control inputs and, types apart, the attributes
 * that it had; -1 if all have. Values are compared as bytes: what protobuf wrote in another way counts as changed. The edited
 * graph's first nodes are those of the original. */
EXPORT int64_t amp_tf_find_change(const graph *before, const graph *after, uint64_t first) {
  node one, other;
  for (uint64_t number = first; number < before->node_count && number < after->node_count; ++number) {
    const bytes fields[2] = {field_at(before, number), field_at(after, number)};
    if (is_equal(fields[0], fields[1])) continue;
    node_at(before, number, &one);
    node_at(after, number, &other);
    if (!has_equal_attributes(&one, &other)) return (int64_t)number;
    if (!has_equal_controls(content_of(fields[0]), content_of(fields[1]))) return (int64_t)number;
  }
  return -1;
}
