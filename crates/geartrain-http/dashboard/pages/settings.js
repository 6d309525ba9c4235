// The server: its health, the options of the queue, the reader's role, backup.

import { ask, askAll, optional, or, url } from '../api.js';
import { h } from '../dom.js';
import { shellWord } from '../format.js';
import { icon } from '../icons.js';
import { can, session } from '../session.js';
import { badge, button, card, commands, confirm, facts, table } from '../ui.js';
import { health } from './overview.js';

export default {
  title: () => 'Settings',
  filter: () => ({ event: ['config-set', 'config-unset'] }),

  async load() {
    const [server, settings, [options]] = await Promise.all([
      optional('v1/server'),
      can('admin') ? optional('v1/settings') : [],
      askAll([['config']]),
    ]);
    return { server, settings: settings ?? [], options: or(options, []) };
  },

  view({ server, settings, options }, ctx) {
    return [
      h(
        'div.columns',
        { key: 'top' },
        card(
          'Server',
          { class: 'two' },
          server &&
            h('div.pad', null, facts(health(server))),
        ),
        h(
          'div.stack-cards',
          null,
          card(
            'Your access',
            {},
            h(
              'div.pad',
              null,
              facts([
                ['Key', session.name ?? (session.login ? 'the password' : 'none is required')],
                ['Role', session.role],
                ['Server', session.read_only && 'read-only'],
              ]),
              h(
                'p.muted.small',
                null,
                'A viewer reads. An operator also puts and changes jobs, queues and schedules. ',
                'An admin also sets options, downloads backups, and sees the audit log.',
              ),
            ),
          ),
          card(
            'Interfaces',
            {},
            h(
              'ul.list',
              null,
              [
                ['openapi.json', 'The API, as OpenAPI'],
                ['metrics', 'Metrics for Prometheus'],
                ['readyz', 'Whether the queue answers'],
              ].map(([path, text]) => h('li', { key: path }, icon('link'), h('a', { href: url(path) }, text))),
            ),
          ),
          can('admin') &&
            card(
              'Backup',
              {},
              h(
                'div.pad',
                null,
                h('p.muted', null, 'A copy of the store as a tar archive, made while the server runs.'),
                h(
                  'a.button',
                  { href: url('v1/backup'), download: 'geartrain-backup.tar' },
                  icon('download'),
                  'Download a backup',
                ),
              ),
            ),
        ),
      ),
      options.length > 0 &&
        card(
          'Options of the queue',
          { class: 'flush', note: 'they apply at once' },
          table({
            id: 'options',
            label: 'Options of the queue',
            rows: options,
            rowKey: (each) => each.key,
            columns: [
              {
                label: 'Option',
                class: 'grow text',
                cell: (each) =>
                  h('span.stack', null, h('code', null, each.key), h('span.muted.small', null, each.meaning ?? '')),
              },
              {
                label: 'Value',
                class: 'num',
                cell: (each) =>
                  h(
                    'span.row.tight.end',
                    null,
                    each.ignored && badge('stalled', `ignored: ${each.ignored}`),
                    h(
                      'span',
                      null,
                      each.value === null || each.value === '' ? '–' : each.value,
                      each.unit && each.value !== '' && h('span.muted', null, ` ${each.unit}`),
                    ),
                  ),
              },
              {
                label: 'Set',
                class: 'sm',
                cell: (each) => (each.default ? h('span.muted', null, 'default') : h('span.badge', null, 'set')),
              },
              ...(can('admin')
                ? [
                    {
                      label: '',
                      class: 'act',
                      cell: (each) =>
                        button('Change', () => change(each, ctx.done), {
                          class: 'quiet',
                          label: `Change ${each.key}`,
                        }),
                    },
                  ]
                : []),
            ],
          }),
        ),
      settings.length > 0 &&
        card(
          'Settings of the server',
          { class: 'flush', note: 'read at its start' },
          table({
            id: 'settings',
            label: 'Settings of the server',
            rows: settings,
            rowKey: (each) => each.name,
            columns: [
              { label: 'Setting', class: 'grow', cell: (each) => h('code', null, each.name.replace(/^server\./, '')) },
              { label: 'Value', class: 'text', cell: (each) => settingValue(each.value) },
              {
                label: 'From',
                class: 'sm',
                cell: (each) => (each.origin === 'default' ? h('span.muted', null, 'default') : originOf(each)),
              },
            ],
          }),
        ),
    ];
  },
};

const settingValue = (value) => {
  if (value === null || value === '' || value?.length === 0) return '–';
  if (value === true) return 'yes';
  if (value === false) return 'no';
  return Array.isArray(value) ? value.join(', ') : String(value);
};

const originOf = ({ origin, flag, variable, file, line }) =>
  h('code', null, flag ?? variable ?? (file ? `${file}:${line}` : origin));

function change(option, done) {
  confirm({
    title: option.key,
    text: option.meaning,
    action: 'Set',
    fields: [
      { name: 'key', label: 'Option', value: option.key, required: true },
      {
        name: 'value',
        label: option.unit ? `Value in ${option.unit}` : 'Value',
        value: option.default ? '' : (option.value ?? ''),
        hint: `Empty: the default, ${option.default_value || 'none'}.`,
      },
    ],
    commands: commands(
      `config set ${shellWord(option.key)} ${shellWord(option.value ?? '1')}`,
      'PUT',
      `v1/options/${encodeURIComponent(option.key)}`,
      { value: option.value },
    ),
    run: async ({ key, value }) => {
      await (value === '' ? ask('unset-config', { key }) : ask('set-config', { key, value }));
      done();
      return value === '' ? `${key} has its default again.` : `${key} is ${value}.`;
    },
  });
}
