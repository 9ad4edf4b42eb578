import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * A Kafka Streams application: counts words, and joins two streams within a window.
 *
 * <p>Arguments: bootstrap servers, application id, state folder, group protocol (streams or classic),
 * number of threads, application server (host:port, or - for none), then pairs config=value for the
 * client. Prints one line for each change of state, and ends when its standard input does.
 */
public final class StreamsApp {
    private StreamsApp() {}

    static Topology topology() {
        StreamsBuilder builder = new StreamsBuilder();
        Consumed<String, String> texts = Consumed.with(Serdes.String(), Serdes.String());
        builder.stream("lines", texts)
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with("by-word", Serdes.String(), Serdes.String()))
                .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
                .toStream()
                .mapValues(Object::toString)
                .to("counted", Produced.with(Serdes.String(), Serdes.String()));
        KStream<String, String> orders = builder.stream("orders", texts);
        KStream<String, String> payments = builder.stream("payments", texts);
        orders.join(
                        payments,
                        (order, payment) -> order + "+" + payment,
                        JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofMinutes(10)),
                        StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String())
                                .withName("paid"))
                .to("paid", Produced.with(Serdes.String(), Serdes.String()));
        return builder.build();
    }

    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        config.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        config.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, args[3]);
        config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, args[4]);
        if (!args[5].equals("-")) {
            config.put(StreamsConfig.APPLICATION_SERVER_CONFIG, args[5]);
        }
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        for (int i = 6; i < args.length; i++) {
            int at = args[i].indexOf('=');
            config.put(args[i].substring(0, at), args[i].substring(at + 1));
        }
        KafkaStreams streams = new KafkaStreams(topology(), config);
        streams.setStateListener((now, before) -> {
            System.out.println("state " + now);
            System.out.flush();
        });
        streams.setUncaughtExceptionHandler(error -> {
            System.out.println("error " + error);
            System.out.flush();
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler
                    .StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.start();
        int letter = System.in.read();
        while (letter != -1) {
            if (letter == 'm') {
                System.out.println("metadata " + streams.metadataForAllStreamsClients());
                System.out.flush();
            }
            letter = System.in.read();
        }
        streams.close(Duration.ofSeconds(30));
        System.out.println("closed");
    }
}
