// What a generated dashboard may look like, by Grafana's own types. `make dashboard-schema` turns it into
// dashboard.schema.json, which the tests use; only that needs npm.
import type * as raw from './node_modules/@grafana/schema/dist/types/raw/dashboard/x/types.gen';
import type * as barchart from './node_modules/@grafana/schema/dist/types/raw/composable/barchart/panelcfg/x/types.gen';
import type * as geomap from './node_modules/@grafana/schema/dist/types/raw/composable/geomap/panelcfg/x/types.gen';
import type * as heatmap from './node_modules/@grafana/schema/dist/types/raw/composable/heatmap/panelcfg/x/types.gen';
import type * as histogram from './node_modules/@grafana/schema/dist/types/raw/composable/histogram/panelcfg/x/types.gen';
import type * as stat from './node_modules/@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/types.gen';
import type * as statetimeline from './node_modules/@grafana/schema/dist/types/raw/composable/statetimeline/panelcfg/x/types.gen';
import type * as table from './node_modules/@grafana/schema/dist/types/raw/composable/table/panelcfg/x/types.gen';
import type * as text from './node_modules/@grafana/schema/dist/types/raw/composable/text/panelcfg/x/types.gen';
import type * as timeseries from './node_modules/@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/types.gen';
import type * as xychart from './node_modules/@grafana/schema/dist/types/raw/composable/xychart/panelcfg/x/types.gen';

interface Of<Kind extends string, Options, Fields> extends Omit<raw.Panel, 'type' | 'options' | 'fieldConfig'> {
  options: Options;
  fieldConfig?: { defaults: Omit<raw.FieldConfig, 'custom'> & { custom?: Fields }; overrides: raw.FieldConfigSource['overrides'] };
  type: Kind;
}

// Grafana's type describes the annotations of its own database; those of Prometheus carry a query and two templates.
interface Note extends Omit<raw.AnnotationQuery, 'target'> {
  target: { expr: string; [key: string]: unknown };
  titleFormat?: string;
  textFormat?: string;
}

export interface Checked extends Omit<raw.Dashboard, 'panels' | 'annotations'> {
  annotations: { list: Array<Note> };
  panels: Array<
    | Of<'barchart', barchart.Options, barchart.FieldConfig>
    | Of<'geomap', geomap.Options, {}>
    | Of<'heatmap', heatmap.Options, heatmap.FieldConfig>
    | Of<'histogram', histogram.Options, histogram.FieldConfig>
    | Of<'stat', stat.Options, {}>
    | Of<'state-timeline', statetimeline.Options, statetimeline.FieldConfig>
    | Of<'table', table.Options, table.FieldConfig>
    | Of<'text', text.Options, {}>
    | Of<'timeseries', timeseries.Options, timeseries.FieldConfig>
    | Of<'xychart', xychart.Options, xychart.FieldConfig>
  >;
}
