import java.time.Duration;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.LongAdder;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.core.fs.Path;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.core.JsonFactory;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.core.JsonParser;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.util.Collector;

/** The pipelines of loadjobs.py as one writes them for Flink's DataStream API. A row is (one key, another, time in milliseconds). */
final class LoadJobs {
    private static final long BASE_US = 1_767_225_600_000_000L;
    private static final int USERS = 97;
    private static final int VALUES = 1000;
    private static final int MANY = 50_021;
    private static final long WITHIN_MS = 3000;
    private static final long PAID_US = 200_000;
    private static final TypeInformation<Tuple3<Long, Long, Long>> ROW = Latency.ROW;
    private static final TypeInformation<Tuple2<Long, Long>> PAIR = Types.TUPLE(Types.LONG, Types.LONG);

    /** `rate`: rows a second, 0 for a flood; a window is measured from `warm` to `whole` seconds. */
    static void build(StreamExecutionEnvironment env, String pipeline, double rate, double warm, double whole, int lanes) {
        switch (pipeline) {
            case "count":
                long first = rate == 0 ? Long.MAX_VALUE : (long) (Math.max(0, rate) * warm);
                Latency.build(env, source(new Latency.Paced(first), 0, rate, whole, lanes), true);
                break;
            case "aggregates":
                aggregates(timed(env, new Rows(Rows.TRADES, rate), 0, rate, whole, lanes));
                break;
            case "sessions":
                sessions(timed(env, new Rows(Rows.VISITS, rate), 0, rate, whole, lanes));
                break;
            case "interval":
                double half = rate > 0 ? rate / 2 : rate;
                interval(
                        timed(env, new Rows(Rows.ORDERS, half), 0, half, whole, lanes),
                        timed(env, new Rows(Rows.PAYMENTS, half), 1, half, whole, lanes));
                break;
            case "function":
                sum(timed(env, new Rows(Rows.VISITS, rate), 0, rate, whole, lanes).keyBy(row -> row.f1, Types.LONG).process(new Later()), "later");
                break;
            default:
                throw new IllegalArgumentException("there is no pipeline " + pipeline);
        }
    }

    /** A running count of lines. Each is due by its number, as the others are. */
    static void files(StreamExecutionEnvironment env, java.nio.file.Path folder, double rate, double warm) {
        FileSource<Lines.Line> source =
                FileSource.forRecordStreamFormat(new Lines.Format(), new Path(folder.toUri()))
                        .monitorContinuously(Duration.ofMillis(100))
                        .build();
        Latency.count(
                env.fromSource(source, WatermarkStrategy.noWatermarks(), "lines", TypeInformation.of(Lines.Line.class))
                        .flatMap(new OfLines(rate, (long) (rate * warm)))
                        .returns(ROW),
                true);
    }

    private static <T> Numbered<T> source(Numbered.Maker<T> maker, int number, double rate, double whole, int lanes) {
        return new Numbered<>(1L << 50, lanes, rate, new Load.Counted<>(maker, number, lanes), whole);
    }

    private static DataStream<Tuple3<Long, Long, Long>> timed(
            StreamExecutionEnvironment env, Rows rows, int number, double rate, double whole, int lanes) {
        WatermarkStrategy<Tuple3<Long, Long, Long>> times =
                WatermarkStrategy.<Tuple3<Long, Long, Long>>forBoundedOutOfOrderness(Duration.ofSeconds(1))
                        .withTimestampAssigner((row, before) -> row.f2);
        return env.fromSource(source(rows, number, rate, whole, lanes), times, "rows " + number, ROW);
    }

    private static void aggregates(DataStream<Tuple3<Long, Long, Long>> rows) {
        for (int number = 0; number < 8; number++) {
            long least = number;
            sum(
                    rows.filter(row -> row.f1 > least)
                            .keyBy(row -> row.f0, Types.LONG)
                            .window(TumblingEventTimeWindows.of(Duration.ofSeconds(number + 1)))
                            .aggregate(new Count(), PAIR, PAIR),
                    "w" + number);
            rows.keyBy(row -> row.f1, Types.LONG)
                    .process(new Running())
                    .returns(PAIR)
                    .map(new Last("r" + number))
                    .returns(Types.LONG)
                    .sinkTo(new DiscardingSink<>());
        }
    }

    private static void sessions(DataStream<Tuple3<Long, Long, Long>> rows) {
        sum(
                rows.keyBy(row -> row.f0, Types.LONG)
                        .window(EventTimeSessionWindows.withGap(Duration.ofSeconds(2)))
                        .aggregate(new Count(), PAIR, PAIR),
                "sessions");
        sum(
                rows.keyBy(row -> row.f1, Types.LONG)
                        .window(TumblingEventTimeWindows.of(Duration.ofSeconds(5)))
                        .aggregate(new Count(), PAIR, PAIR),
                "windows");
        sum(rows.keyBy(row -> row.f1, Types.LONG).process(new First()), "first");
    }

    private static void interval(DataStream<Tuple3<Long, Long, Long>> orders, DataStream<Tuple3<Long, Long, Long>> payments) {
        sum(
                orders.keyBy(row -> row.f0, Types.LONG)
                        .intervalJoin(payments.keyBy(row -> row.f0, Types.LONG))
                        .between(Duration.ZERO, Duration.ofSeconds(1))
                        .process(new Paid()),
                "paid");
    }

    /** Results (count, anything) go to a sink that adds them up. */
    private static void sum(SingleOutputStreamOperator<Tuple2<Long, Long>> results, String sink) {
        results.returns(PAIR).map(new Sum(sink)).returns(Types.LONG).sinkTo(new DiscardingSink<>());
    }

    /** Rows by their numbers, as loadjobs.py makes them. */
    private static final class Rows implements Numbered.Maker<Tuple3<Long, Long, Long>> {
        static final int TRADES = 0;
        static final int VISITS = 1;
        static final int ORDERS = 2;
        static final int PAYMENTS = 3;
        private final int kind;
        private final double step; // microseconds of event time from one row to the next
        private transient Tuple3<Long, Long, Long> row;

        Rows(int kind, double rate) {
            this.kind = kind;
            this.step = rate > 0 ? 1e6 / rate : 1;
        }

        @Override
        public void open(int lane, long skip) {
            row = new Tuple3<>();
        }

        @Override
        public Tuple3<Long, Long, Long> make(long number, long dueNanos) {
            row.f0 = kind == TRADES ? number * 7919 % USERS : kind == VISITS ? number * 7919 % MANY : number;
            row.f1 = kind == TRADES ? number * 37 % VALUES : number % VALUES;
            row.f2 = (BASE_US + (long) (number * step) + (kind == PAYMENTS ? PAID_US : 0)) / 1000;
            return row;
        }
    }

    /** (key, when it is due, 1 or -1) of a line: the rows of Latency. */
    private static final class OfLines extends RichFlatMapFunction<Lines.Line, Tuple3<Long, Long, Long>> {
        private final double rate;
        private final long warm;
        private transient JsonFactory json;
        private transient Tuple3<Long, Long, Long> row;

        OfLines(double rate, long warm) {
            this.rate = rate;
            this.warm = warm;
        }

        @Override
        public void open(OpenContext context) {
            json = new JsonFactory();
            row = new Tuple3<>();
        }

        @Override
        public void flatMap(Lines.Line line, Collector<Tuple3<Long, Long, Long>> out) throws Exception {
            long number = 0;
            try (JsonParser parser = json.createParser(line.bytes, line.start, line.length)) {
                parser.nextToken();
                String name;
                while ((name = parser.nextFieldName()) != null) {
                    parser.nextToken();
                    if (name.equals("key")) {
                        row.f0 = parser.getLongValue();
                    } else if (name.equals("number")) {
                        number = parser.getLongValue();
                    }
                }
            }
            row.f1 = Load.begin() + (long) (number * (1e9 / rate));
            row.f2 = number < warm ? -1L : 1L;
            Load.reads(number);
            out.collect(row);
        }
    }

    /** (count, the largest second field). */
    private static final class Count implements AggregateFunction<Tuple3<Long, Long, Long>, Tuple2<Long, Long>, Tuple2<Long, Long>> {
        @Override
        public Tuple2<Long, Long> createAccumulator() {
            return Tuple2.of(0L, Long.MIN_VALUE);
        }

        @Override
        public Tuple2<Long, Long> add(Tuple3<Long, Long, Long> row, Tuple2<Long, Long> so) {
            so.f0++;
            so.f1 = Math.max(so.f1, row.f1);
            return so;
        }

        @Override
        public Tuple2<Long, Long> getResult(Tuple2<Long, Long> so) {
            return so;
        }

        @Override
        public Tuple2<Long, Long> merge(Tuple2<Long, Long> one, Tuple2<Long, Long> other) {
            return Tuple2.of(one.f0 + other.f0, Math.max(one.f1, other.f1));
        }
    }

    /** What keeps one number per key. */
    private abstract static class Keeping<O> extends KeyedProcessFunction<Long, Tuple3<Long, Long, Long>, O> {
        protected transient ValueState<Long> kept;

        @Override
        public void open(OpenContext context) {
            kept = getRuntimeContext().getState(new ValueStateDescriptor<>("kept", Types.LONG));
        }
    }

    /** (key, how many of its rows there were). */
    private static final class Running extends Keeping<Tuple2<Long, Long>> {
        @Override
        public void processElement(Tuple3<Long, Long, Long> row, Context context, Collector<Tuple2<Long, Long>> out) throws Exception {
            Long before = kept.value();
            long now = before == null ? 1 : before + 1;
            kept.update(now);
            out.collect(Tuple2.of(context.getCurrentKey(), now));
        }
    }

    /** The first row of a key; forgotten after a while. */
    private static final class First extends Keeping<Tuple2<Long, Long>> {
        @Override
        public void processElement(Tuple3<Long, Long, Long> row, Context context, Collector<Tuple2<Long, Long>> out) throws Exception {
            Long passed = kept.value();
            if (passed == null || row.f2 > passed + WITHIN_MS) {
                kept.update(row.f2);
                context.timerService().registerEventTimeTimer(row.f2 + WITHIN_MS);
                out.collect(Tuple2.of(1L, row.f1));
            }
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<Tuple2<Long, Long>> out) throws Exception {
            Long passed = kept.value();
            if (passed != null && passed + WITHIN_MS <= time) {
                kept.clear();
            }
        }
    }

    /** (count, 0) of a key, a second after the first of its rows. */
    private static final class Later extends Keeping<Tuple2<Long, Long>> {
        @Override
        public void processElement(Tuple3<Long, Long, Long> row, Context context, Collector<Tuple2<Long, Long>> out) throws Exception {
            Long before = kept.value();
            kept.update(before == null ? 1 : before + 1);
            if (before == null) {
                context.timerService().registerEventTimeTimer(row.f2 + 1000);
            }
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<Tuple2<Long, Long>> out) throws Exception {
            out.collect(Tuple2.of(kept.value(), 0L));
            kept.clear();
        }
    }

    private static final class Paid extends ProcessJoinFunction<Tuple3<Long, Long, Long>, Tuple3<Long, Long, Long>, Tuple2<Long, Long>> {
        @Override
        public void processElement(
                Tuple3<Long, Long, Long> order, Tuple3<Long, Long, Long> payment, Context context, Collector<Tuple2<Long, Long>> out) {
            out.collect(Tuple2.of(1L, order.f0));
        }
    }

    /** Where results arrive: how many, and the sum of their counts. */
    private static final class Sum extends RichMapFunction<Tuple2<Long, Long>, Long> implements CheckpointListener {
        private final String sink;
        private transient LongAdder[] both;

        Sum(String sink) {
            this.sink = sink;
        }

        @Override
        public void open(OpenContext context) {
            both = Load.sums(sink);
        }

        @Override
        public Long map(Tuple2<Long, Long> result) {
            both[0].increment();
            both[1].add(result.f0);
            return result.f0;
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            Load.completes(checkpoint);
        }
    }

    /** Where updates (key, count) arrive: the last one of each key. */
    private static final class Last extends RichMapFunction<Tuple2<Long, Long>, Long> {
        private final String sink;
        private transient AtomicLongArray last;

        Last(String sink) {
            this.sink = sink;
        }

        @Override
        public void open(OpenContext context) {
            last = Load.counts(sink, VALUES);
        }

        @Override
        public Long map(Tuple2<Long, Long> update) {
            last.lazySet(update.f0.intValue(), update.f1);
            return update.f1;
        }
    }

    private LoadJobs() {}
}
