//! The Grafana dashboard: its panels here, and the JSON that Grafana imports.

use serde_json::{Value, json};

/// A row of panels.
struct Section {
    title: &'static str,
    panels: &'static [Panel],
}

/// A graph over time.
struct Panel {
    title: &'static str,
    help: &'static str,
    /// Grafana's name of the unit.
    unit: &'static str,
    /// Each query, with the legend of its lines.
    queries: &'static [(&'static str, &'static str)],
}

/// Panels in a row of the dashboard, and the size of each, in units of the grid.
const IN_A_ROW: usize = 3;
const WIDTH: usize = 24 / IN_A_ROW;
const HEIGHT: usize = 8;

/// The time over which a rate is taken, as Grafana knows it.
const RATE: &str = "$__rate_interval";

const SECTIONS: &[Section] = &[
    Section {
        title: "Buyers",
        panels: &[
            Panel {
                title: "Orders and refusals",
                help: "Orders accepted, and refusals by code, per second.",
                unit: "reqps",
                queries: &[
                    ("sum(rate(doorbuster_front_accepted_total[$__rate_interval]))", "accepted"),
                    ("sum by (code) (rate(doorbuster_front_problems_total[$__rate_interval]))", "{{code}}"),
                ],
            },
            Panel {
                title: "Time to place an order",
                help: "Half and 99 % of the requests that place an order are answered within this time.",
                unit: "s",
                queries: &[
                    (
                        "histogram_quantile(0.5, sum by (le) (rate(doorbuster_http_request_duration_seconds_bucket{route=\"/v1/sales/{sale}/orders\",method=\"POST\"}[$__rate_interval])))",
                        "p50",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(doorbuster_http_request_duration_seconds_bucket{route=\"/v1/sales/{sale}/orders\",method=\"POST\"}[$__rate_interval])))",
                        "p99",
                    ),
                ],
            },
            Panel {
                title: "Units left",
                help: "What the gate has left to sell.",
                unit: "short",
                queries: &[("max by (sale, sku) (doorbuster_gate_units_left)", "{{sale}} {{sku}}")],
            },
            Panel {
                title: "Requests by route",
                help: "Requests per second.",
                unit: "reqps",
                queries: &[(
                    "sum by (method, route) (rate(doorbuster_http_request_duration_seconds_count[$__rate_interval]))",
                    "{{method}} {{route}}",
                )],
            },
            Panel {
                title: "Requests that failed",
                help: "The share of requests that were answered with 5xx.",
                unit: "percentunit",
                queries: &[(
                    "(sum(rate(doorbuster_http_request_duration_seconds_count{status=~\"5..\"}[$__rate_interval])) or vector(0)) / sum(rate(doorbuster_http_request_duration_seconds_count[$__rate_interval]))",
                    "5xx",
                )],
            },
            Panel {
                title: "Connections",
                help: "Open connections of each listener, over all fronts.",
                unit: "short",
                queries: &[("sum by (listener) (doorbuster_http_connections)", "{{listener}}")],
            },
        ],
    },
    Section {
        title: "The way of an order",
        panels: &[
            Panel {
                title: "Orders in flight",
                help: "Accepted, and without a row.",
                unit: "short",
                queries: &[("max by (sale) (doorbuster_outbox_orders)", "{{sale}}")],
            },
            Panel {
                title: "Oldest order in flight",
                help: "For how long a buyer has waited for the row of their order.",
                unit: "s",
                queries: &[("max by (sale) (doorbuster_outbox_oldest_seconds)", "{{sale}}")],
            },
            Panel {
                title: "Accepted to persisted",
                help: "Half and 99 % of the orders get their row within this time.",
                unit: "s",
                queries: &[
                    (
                        "histogram_quantile(0.5, sum by (le) (rate(doorbuster_order_persist_lag_seconds_bucket[$__rate_interval])))",
                        "p50",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(doorbuster_order_persist_lag_seconds_bucket[$__rate_interval])))",
                        "p99",
                    ),
                ],
            },
            Panel {
                title: "Calls of the servers",
                help: "99 % of them take no longer: Redis for an admission, RabbitMQ for a confirm, the database for a batch.",
                unit: "s",
                queries: &[
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(doorbuster_gate_admit_seconds_bucket[$__rate_interval])))",
                        "admission",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(doorbuster_relay_confirm_seconds_bucket[$__rate_interval])))",
                        "confirm",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(doorbuster_worker_persist_seconds_bucket[$__rate_interval])))",
                        "transaction",
                    ),
                ],
            },
            Panel {
                title: "Rows written",
                help: "Orders that got their row, per second, and how many of them share a transaction.",
                unit: "short",
                queries: &[
                    (
                        "sum by (status) (rate(doorbuster_worker_orders_total[$__rate_interval]))",
                        "{{status}}",
                    ),
                    (
                        "sum(rate(doorbuster_worker_batch_orders_sum[$__rate_interval])) / sum(rate(doorbuster_worker_batch_orders_count[$__rate_interval]))",
                        "orders in a batch",
                    ),
                ],
            },
            Panel {
                title: "Messages",
                help: "Ready messages of each queue. There should be none in dead and unrouted.",
                unit: "short",
                queries: &[("max by (queue) (doorbuster_queue_messages)", "{{queue}}")],
            },
            Panel {
                title: "Servers",
                help: "0 where a process cannot use a server.",
                unit: "short",
                queries: &[(
                    "min by (instance, dependency) (doorbuster_dependency_up)",
                    "{{instance}} {{dependency}}",
                )],
            },
            Panel {
                title: "Connections to the database",
                help: "In use, as a share of what each process may have.",
                unit: "percentunit",
                queries: &[(
                    "doorbuster_database_connections_in_use / doorbuster_database_connections_max",
                    "{{instance}}",
                )],
            },
            Panel {
                title: "Published again, left, lost",
                help: "What needed a second attempt, per second.",
                unit: "short",
                queries: &[
                    (
                        "sum(rate(doorbuster_sweep_published_total[$__rate_interval]))",
                        "published by the sweep",
                    ),
                    (
                        "sum(rate(doorbuster_relay_published_total{result=\"left\"}[$__rate_interval]))",
                        "not confirmed",
                    ),
                    (
                        "sum by (reason) (rate(doorbuster_leases_lost_total[$__rate_interval]))",
                        "lease {{reason}}",
                    ),
                ],
            },
        ],
    },
    Section {
        title: "Books",
        panels: &[
            Panel {
                title: "Books that are wrong",
                help: "There should be none.",
                unit: "short",
                queries: &[
                    ("max(doorbuster_audit_sales_out_of_balance)", "out of balance"),
                    ("max(doorbuster_audit_sales_to_rebuild)", "to rebuild"),
                    ("max by (reason) (doorbuster_audit_sales_unjudged)", "unjudged: {{reason}}"),
                    ("max(doorbuster_database_behind)", "database behind"),
                ],
            },
            Panel {
                title: "Payments, returns and deadlines",
                help: "What waits.",
                unit: "short",
                queries: &[
                    ("max(doorbuster_payments_pending)", "payments pending"),
                    ("max(doorbuster_payments_late)", "payments to refund"),
                    ("max(doorbuster_maintenance_returns_waiting)", "units to return"),
                    ("max(doorbuster_maintenance_orders_overdue)", "orders overdue"),
                ],
            },
            Panel {
                title: "The order log",
                help: "How far back it reaches, or how long it keeps its entries while it has everything; and how old the oldest change is \
                       that it lacks.",
                unit: "s",
                queries: &[
                    (
                        "(time() - (max(doorbuster_order_log_begins_timestamp_seconds) > 0)) or max(doorbuster_order_log_kept_seconds)",
                        "reaches back",
                    ),
                    ("max(doorbuster_order_log_oldest_unwritten_seconds)", "oldest unwritten"),
                ],
            },
        ],
    },
    Section {
        title: "Who listens",
        panels: &[
            Panel {
                title: "Streams of events",
                help: "Buyers and operators who follow an order or a sale.",
                unit: "short",
                queries: &[("sum(doorbuster_event_streams) or vector(0)", "open")],
            },
            Panel {
                title: "Webhooks that are not taken",
                help: "What waits for the endpoints of the shop, what was given up, and endpoints that are switched off.",
                unit: "short",
                queries: &[
                    ("max(doorbuster_webhook_deliveries_waiting) or vector(0)", "waiting"),
                    ("max(doorbuster_webhook_deliveries_given_up) or vector(0)", "given up"),
                    ("max(doorbuster_webhook_endpoints_off) or vector(0)", "endpoints off"),
                ],
            },
            Panel {
                title: "Webhooks and traces",
                help: "Webhooks that were taken or failed, and spans that no collector got, per second.",
                unit: "short",
                queries: &[
                    (
                        "sum(rate(doorbuster_webhooks_delivered_total[$__rate_interval])) or vector(0)",
                        "taken",
                    ),
                    ("sum(rate(doorbuster_webhooks_failed_total[$__rate_interval])) or vector(0)", "failed"),
                    (
                        "sum(rate(doorbuster_trace_spans_total{result=\"dropped\"}[$__rate_interval])) or vector(0)",
                        "spans dropped",
                    ),
                ],
            },
        ],
    },
];

/// The title of each panel and its queries, with rates over `over`, such as `1m`.
pub fn queries(over: &str) -> Vec<(&'static str, String)> {
    let panels = SECTIONS.iter().flat_map(|section| section.panels);
    let queries = panels.flat_map(|panel| panel.queries.iter().map(move |(query, _)| (panel.title, query)));
    queries.map(|(title, query)| (title, query.replace(RATE, over))).collect()
}

/// The dashboard as Grafana imports it.
pub fn grafana() -> Value {
    let mut panels = Vec::new();
    let mut y = 0;
    for section in SECTIONS {
        panels.push(json!({
            "id": panels.len() + 1, "type": "row", "title": section.title, "collapsed": false, "panels": [],
            "gridPos": { "x": 0, "y": y, "w": 24, "h": 1 },
        }));
        y += 1;
        for (nth, panel) in section.panels.iter().enumerate() {
            let at = json!({ "x": nth % IN_A_ROW * WIDTH, "y": y + nth / IN_A_ROW * HEIGHT, "w": WIDTH, "h": HEIGHT });
            panels.push(panel.json(panels.len() + 1, at));
        }
        y += section.panels.len().div_ceil(IN_A_ROW) * HEIGHT;
    }
    json!({
        "uid": "doorbuster",
        "title": "Doorbuster",
        "description": "Written by `doorbuster init grafana`.",
        "tags": ["doorbuster"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "5s",
        "time": { "from": "now-30m", "to": "now" },
        "templating": { "list": [{
            "name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus",
        }] },
        "panels": panels,
    })
}

impl Panel {
    fn json(&self, id: usize, at: Value) -> Value {
        let source = json!({ "type": "prometheus", "uid": "${datasource}" });
        let targets = self.queries.iter().zip('A'..).map(|((query, legend), letter)| {
            json!({ "refId": letter, "expr": query, "legendFormat": legend, "datasource": source })
        });
        json!({
            "id": id,
            "type": "timeseries",
            "title": self.title,
            "description": self.help,
            "datasource": source,
            "gridPos": at,
            "fieldConfig": { "defaults": { "unit": self.unit, "min": 0 }, "overrides": [] },
            "options": {
                "legend": { "displayMode": "list", "placement": "bottom" },
                "tooltip": { "mode": "multi", "sort": "desc" },
            },
            "targets": targets.collect::<Vec<_>>(),
        })
    }
}
