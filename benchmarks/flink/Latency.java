import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/** How late rows are counted: the work of latency.py. A row is (key, when it is due, count); each is due at its own moment. */
final class Latency {
    private static final int KEYS = 100;
    private static final int LONGEST_US = 2_000_000;
    private static final TypeInformation<Tuple3<Long, Long, Long>> ROW = Types.TUPLE(Types.LONG, Types.LONG, Types.LONG);

    private static final AtomicIntegerArray LATE = new AtomicIntegerArray(LONGEST_US); // how many rows were so many us late
    private static final AtomicLong MOST = new AtomicLong();
    private static final AtomicLong CHECKPOINTS = new AtomicLong();
    private static final AtomicLong COUNTED = new AtomicLong();

    static void build(StreamExecutionEnvironment env, long rate, long rows, int lanes, double warmSeconds) {
        long warm = (long) (rate * warmSeconds);
        env.fromSource(new Numbered<>(rows, lanes, rate, new Paced(warm)), WatermarkStrategy.noWatermarks(), "paced", ROW)
                .keyBy(row -> row.f0, Types.LONG)
                .process(new Running())
                .returns(ROW)
                .map(new Note())
                .returns(Types.LONG)
                .sinkTo(new DiscardingSink<>());
    }

    /** Rows at the start are not measured: their third field is -1 until they are counted, and then negative. */
    private static final class Paced implements Numbered.Maker<Tuple3<Long, Long, Long>> {
        private final long warm;
        private transient Tuple3<Long, Long, Long> row;

        Paced(long warm) {
            this.warm = warm;
        }

        @Override
        public void open(int lane, long skip) {
            row = new Tuple3<>();
        }

        @Override
        public Tuple3<Long, Long, Long> make(long number, long dueNanos) {
            row.f0 = number % KEYS;
            row.f1 = dueNanos;
            row.f2 = number < warm ? -1L : 1L;
            return row;
        }
    }

    private static final class Running extends KeyedProcessFunction<Long, Tuple3<Long, Long, Long>, Tuple3<Long, Long, Long>> {
        private transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(Tuple3<Long, Long, Long> row, Context context, Collector<Tuple3<Long, Long, Long>> out)
                throws Exception {
            Long before = count.value();
            long now = before == null ? 1 : before + 1;
            count.update(now);
            row.f2 *= now;
            out.collect(row);
        }
    }

    private static final class Note implements MapFunction<Tuple3<Long, Long, Long>, Long>, CheckpointListener {
        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            CHECKPOINTS.accumulateAndGet(checkpoint, Math::max);
        }

        @Override
        public Long map(Tuple3<Long, Long, Long> row) {
            COUNTED.getAndIncrement();
            if (row.f2 > 0) {
                long late = (System.nanoTime() - row.f1) / 1000;
                LATE.getAndIncrement((int) Math.max(0, Math.min(late, LONGEST_US - 1)));
                if (late > MOST.get()) {
                    MOST.accumulateAndGet(late, Math::max);
                }
            }
            return row.f2;
        }
    }

    static Map<String, Object> results() {
        long measured = 0;
        for (int late = 0; late < LONGEST_US; late++) {
            measured += LATE.get(late);
        }
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("counted", COUNTED.get());
        found.put("measured", measured);
        found.put("p50_ms", percentile(measured, 0.5));
        found.put("p99_ms", percentile(measured, 0.99));
        found.put("p999_ms", percentile(measured, 0.999));
        found.put("max_ms", MOST.get() / 1e3);
        found.put("commits", CHECKPOINTS.get());
        return found;
    }

    private static double percentile(long measured, double share) {
        long left = (long) (measured * share);
        int late = 0;
        while (late < LONGEST_US - 1 && (left -= LATE.get(late)) >= 0) {
            late++;
        }
        return late / 1e3;
    }

    private Latency() {}
}
