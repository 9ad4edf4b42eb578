import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs command line tools of Apache Kafka one after another in this JVM: to start one for each takes
 * seconds.
 *
 * <p>Standard input has the calls: the number of words (int), then the words (UTF), the first of which
 * is the name of a class with a main method. Standard output has one answer for each: the exit code
 * (int), the size of what the tool printed (int), and that.
 */
public final class KafkaTools {
    /**
     * Thrown where a tool ends the process. Tools may catch it, so the first code counts, and what is
     * printed afterwards is dropped.
     */
    private static final class Exited extends RuntimeException {
        private static final long serialVersionUID = 1;

        Exited() {
            super(null, null, false, false);
        }
    }

    private static final ByteArrayOutputStream said = new ByteArrayOutputStream();
    private static Integer code;
    private static int size;

    private KafkaTools() {}

    public static void main(String[] ignored) throws Exception {
        DataInputStream in = new DataInputStream(System.in);
        DataOutputStream out = new DataOutputStream(System.out);
        Exit.setExitProcedure((status, message) -> exit(status));
        Exit.setHaltProcedure((status, message) -> exit(status));
        while (true) {
            String[] words;
            try {
                words = readWords(in);
            } catch (EOFException e) {
                return;
            }
            said.reset();
            PrintStream printed = new PrintStream(said, true, "UTF-8");
            System.setOut(printed);
            System.setErr(printed);
            out.writeInt(run(words));
            size = code == null ? said.size() : size;
            out.writeInt(size);
            out.write(said.toByteArray(), 0, size);
            out.flush();
        }
    }

    private static void exit(int status) {
        if (code == null) {
            code = status;
            size = said.size();
        }
        throw new Exited();
    }

    private static String[] readWords(DataInputStream in) throws IOException {
        String[] words = new String[in.readInt()];
        for (int i = 0; i < words.length; i++) {
            words[i] = in.readUTF();
        }
        return words;
    }

    private static int run(String[] words) throws Exception {
        code = null;
        String[] arguments = java.util.Arrays.copyOfRange(words, 1, words.length);
        try {
            Class.forName(words[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException e) {
            if (!(e.getCause() instanceof Exited)) {
                e.getCause().printStackTrace();
                return 1;
            }
        }
        return code == null ? 0 : code;
    }
}
