// npm's client of schema registries, unchanged, against the registry of argv: node registry_client.js URL USER PASSWORD
const { AvroDeserializer, AvroSerializer, JsonDeserializer, JsonSerializer,
  ProtobufDeserializer, ProtobufSerializer, SchemaRegistryClient, SerdeType } = require('@confluentinc/schemaregistry');
const { create, createMutableRegistry } = require('@bufbuild/protobuf');
const { DurationSchema } = require('@bufbuild/protobuf/wkt');
const assert = require('node:assert');

const [url, user, password] = process.argv.slice(2);
const record = (...fields) => ({ schemaType: 'AVRO', schema: JSON.stringify({ type: 'record', name: 'User', fields }) });
const id = { name: 'id', type: 'long' };
const mail = { name: 'mail', type: 'string', default: '' };
const age = { name: 'age', type: 'int' };

function client(secret) {
  const basicAuthCredentials = { credentialsSource: 'USER_INFO', userInfo: `${user}:${secret}` };
  return new SchemaRegistryClient({ baseURLs: [url], basicAuthCredentials, maxRetries: 0 });
}

async function refused(work, status) {
  await assert.rejects(work, (error) => error.status === status);
}

async function calls(known) {
  const number = await known.register('js-people', record(id));
  assert.strictEqual(await client(password).register('js-people', record(id)), number);
  assert.strictEqual(await known.getId('js-people', record(id)), number);
  assert.deepStrictEqual(JSON.parse((await client(password).getBySubjectAndId('js-people', number)).schema).fields, [id]);
  const later = await known.register('js-people', record(id, mail));
  const latest = await known.getLatestSchemaMetadata('js-people');
  assert.deepStrictEqual([latest.version, latest.id], [2, later]);
  assert.deepStrictEqual(await known.getAllVersions('js-people'), [1, 2]);
  assert.strictEqual(await known.testSubjectCompatibility('js-people', record(id)), true);
  assert.strictEqual(await known.testCompatibility('js-people', 2, record(id, mail, age)), false);
  await refused(known.register('js-people', record(id, mail, age)), 409);
  assert.strictEqual(await known.updateCompatibility('js-people', 'NONE'), 'NONE');
  assert.strictEqual(await known.getCompatibility('js-people'), 'NONE');
  assert.ok(await known.register('js-people', record(id, mail, age)) > later);
  assert.strictEqual(await known.deleteSubjectVersion('js-people', 3), 3);
  assert.ok((await known.getAllSubjects()).includes('js-people'));
  await refused(client(password).getLatestSchemaMetadata('js-none'), 404);
  await refused(client('wrong').register('js-people', record(id)), 401);
}

async function values(known) {
  const given = { autoRegisterSchemas: true, registry: createMutableRegistry(DurationSchema) };
  const schemas = { avro: record(id), json: { schemaType: 'JSON', schema: JSON.stringify({ type: 'object', required: ['id'] }) } };
  const formats = {
    avro: [AvroSerializer, AvroDeserializer, { id: 7 }],
    json: [JsonSerializer, JsonDeserializer, { id: 7 }],
    protobuf: [ProtobufSerializer, ProtobufDeserializer, create(DurationSchema, { seconds: 7n })],
  };
  for (const [name, [Serializer, Deserializer, value]] of Object.entries(formats)) {
    const topic = `js-${name}`;
    if (schemas[name]) await known.register(`${topic}-value`, schemas[name]);
    const conf = schemas[name] ? { useLatestVersion: true } : given;
    const bytes = await new Serializer(known, SerdeType.VALUE, conf).serialize(topic, value);
    const number = (await known.getLatestSchemaMetadata(`${topic}-value`)).id;
    assert.deepStrictEqual([bytes[0], bytes.readInt32BE(1)], [0, number]);
    const read = await new Deserializer(client(password), SerdeType.VALUE, {}).deserialize(topic, bytes);
    assert.strictEqual(String(read.id ?? read.seconds), '7');
  }
}

const known = client(password);
calls(known).then(() => values(known)).then(() => console.log('done'), (error) => {
  console.error(error);
  process.exitCode = 1;
});
